"""The gate of a view: what a new version must meet before it is published.

seal, rebuild   draft new bases  ->  compare with those that serve     ->  publish, or delete the drafts
fill            stage the rows   ->  compare all rows including these  ->  commit, or hold them back

The rows of a seal are in the row log already, and reads show them with or without it. The rows of a fill that
did not pass are durable, and not read, see `fills`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from feast_sketch_store.errors import GateError
from feast_sketch_store.layers import SealedRows
from feast_sketch_store.settings.view_settings import ViewSettings, check_of

# What has become of a version that does not pass, and what to do.
SEAL = (
    "The snapshot from before stays, and reads go on to show the rows written since; write correct rows, or "
    "publish these nevertheless with `feast-sketch publish {view} --force`"
)
REBUILD = (
    "Nothing has changed; correct the rows, or do without the gate: `feast-sketch rebuild {view} --force`"
)
FILL = (
    "Its rows are kept and not read; write correct ones, or let these count nevertheless with `feast-sketch "
    "publish {view} --force`, or delete them with `feast-sketch discard {view}`"
)


@dataclass(frozen=True)
class Figures:
    """What a gate compares of two versions of a view.

    Parameters
    ----------
    entities : number of rows.
    facts : by feature, its facts, those included that a cut left out; a scalar is one fact.
    values : by feature, its different values; features whose values have no ids are left out.
    """

    entities: int
    facts: Mapping[str, int]
    values: Mapping[str, int]

    @classmethod
    def of(cls, sealed: SealedRows) -> Self:
        """The figures of sealed rows."""
        cut, names = sealed.cut, list(sealed.codecs)
        facts = {name: sum(f.num_facts for f in sealed.features(name)) + cut.get(name, 0) for name in names}
        vocabularies = {name: [f.vocabulary for f in sealed.features(name)] for name in names}
        # All shards have the same ids.
        values = {name: [len(v) for v in known if v is not None] for name, known in vocabularies.items()}
        return cls(sealed.num_entities, facts, {name: max(sizes) for name, sizes in values.items() if sizes})

    @classmethod
    def sum_of(cls, parts: Iterable[Self]) -> Self:
        """The figures of all shards together."""
        entities, facts, values = 0, dict[str, int](), dict[str, int]()
        for part in parts:
            entities += part.entities
            for name, number in part.facts.items():
                facts[name] = facts.get(name, 0) + number
            for name, number in part.values.items():
                values[name] = max(values.get(name, 0), number)
        return cls(entities, facts, values)

    def to_entry(self) -> dict[str, Any]:
        """The figures as JSON."""
        return asdict(self)

    @classmethod
    def of_entry(cls, entry: Mapping[str, Any]) -> Self:
        """The reverse of `to_entry`."""
        return cls(entry["entities"], entry["facts"], entry["values"])

    def named(self) -> dict[str, int]:
        """Each figure by its name in messages."""
        return {
            "entities": self.entities,
            **{f"facts of {name!r}": number for name, number in self.facts.items()},
            **{f"values of {name!r}": number for name, number in self.values.items()},
        }


def judge(settings: ViewSettings, before: Figures | None, after: Figures, remedy: str) -> None:
    """Compare a new version of a view with the one that serves.

    Parameters
    ----------
    before : None if nothing was sealed yet; then there is no change to compare.
    remedy : `SEAL`, `REBUILD` or `FILL`.

    Raises
    ------
    GateError : it does not meet the gate of the settings; the message has the figures.
    SettingsError : the gate's function cannot be imported.
    """
    reasons = list(_reasons(settings, before, after))
    if reasons:
        error = GateError(
            f"feature view {settings.view!r} does not pass its gate: {'; '.join(reasons)}. "
            + remedy.format(view=settings.view)
        )
        error.reasons = tuple(reasons)
        raise error


def _reasons(settings: ViewSettings, before: Figures | None, after: Figures) -> Iterable[str]:
    gate, known = settings.gate, {} if before is None else before.named()
    if gate.entities is not None and after.entities < gate.entities:
        yield f"{after.entities:,} entities, at least {gate.entities:,} are asked for"
    if gate.change is not None:
        for name, number in after.named().items():
            old = known.get(name, 0)
            if old and abs(number - old) > gate.change * old:
                change = f"{100 * (number - old) / old:+.1f} %"
                yield f"{name}: {old:,} -> {number:,} ({change}, at most {100 * gate.change:g} %)"
    if gate.check is not None:
        check = check_of(settings.view, gate.check, settings.folder)
        try:
            reason = check(settings.view, before, after)
        except Exception as error:  # of the user's function: what cannot be checked is not published
            reason = f"raised {type(error).__name__}: {error}"
        if reason:
            yield f"{gate.check}: {reason}"
