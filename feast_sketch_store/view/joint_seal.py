"""Seals the shards of a view together, with one numbering of values.

sample    the scores of rows, if there are computed features: their ranges complete the formulas
count     the values of the rows that count, shard by shard
number    all values together, as a seal of all rows would
fit       how many of them fit each shard's memory, if features have a memory as their target
draft     a base of each shard with these numbers; nothing is published yet
judge     the figures of all drafts together
publish   one shard after the other; a shard that was not reached keeps its previous base
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeAlias

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.layers.joint import CountedRows, SharedVocabularies
from feast_sketch_store.row_log import LogRead
from feast_sketch_store.row_log.data_file import StagedFile
from feast_sketch_store.rows.formulas import Formula
from feast_sketch_store.snapshot.files import SnapshotFile
from feast_sketch_store.threads import in_threads
from feast_sketch_store.view.folding import Ranges, as_stored, stepped, warn_of_exact, weighted_formulas
from feast_sketch_store.view.gate import Figures
from feast_sketch_store.view.shard import Drafted, Shard

# How many values of each feature fit into its memory in a shard, or why none do.
Fitting: TypeAlias = Mapping[str, int] | SettingsError


def seal_bases(
    shards: Mapping[int, Shard], judge: Callable[[Figures], object], even_empty: bool = False
) -> bool:
    """Seal all shards; the caller holds them all. Returns whether there are new snapshots: not without rows.

    One shard per core is in work at a time, which takes less memory than a seal of all rows. ``judge`` is
    given the figures of the new version before it is published, and may raise. With ``even_empty`` shards of
    which none has rows are sealed, too.

    Raises
    ------
    GateError : of ``judge``; all shards keep their previous snapshots.
    DamagedFileError, StorageError : all shards keep their previous snapshots or, if publishing failed, some
        have new ones.
    """
    given = inputs_of(shards, even_empty)
    if not given:
        return False
    joint = numbered_in_threads(shards, given)
    made: dict[int, Drafted] = {}

    def make(number: int) -> None:
        made[number] = shards[number].draft(given[number], joint)

    with deleted_on_error(shards, made):
        for _ in in_threads(make, given):
            pass
    drafts = dict(sorted(made.items()))
    publish_drafts(shards, drafts, judge)
    for number, draft in drafts.items():
        shards[number].finish_seal(given[number], draft.compacts)
    return True


def inputs_of(shards: Mapping[int, Shard], even_empty: bool = False) -> dict[int, LogRead]:
    """What a seal folds in each shard; nothing if no shard has rows, unless these are to be sealed as well.

    A shard without rows gets a base, too. Rows that are written to it later need what the shards share: the
    formulas of scores, and the values that a cut leaves.

    Raises DamagedFileError, StorageError: the rows stay where they are.
    """
    found = {number: shard.row_log.absorb() for number, shard in shards.items()}
    if not even_empty and not any(found.values()):
        return {}
    return {number: rows or shards[number].begun_input() for number, rows in found.items()}


def numbered_in_threads(
    shards: Mapping[int, Shard], logs: Mapping[int, LogRead]
) -> SharedVocabularies | None:
    """The common parts of the bases of shards with such rows; errors are those of `numbered`.

    None for one shard: the fold of its rows finds the same, without another pass over them.
    """
    if len(shards) == 1:
        return None
    share = 1 / len(shards)

    def fit(joint: SharedVocabularies) -> list[Fitting]:
        def fit_one(number: int) -> Fitting:
            try:
                return shards[number].values_within_memory(logs[number], joint)
            except SettingsError as error:
                return error

        return list(in_threads(fit_one, logs))

    return numbered(
        shards,
        lambda formulas: list(in_threads(lambda n: shards[n].sample(logs[n], formulas, share), logs)),
        lambda formulas: list(in_threads(lambda n: shards[n].count(logs[n], formulas), logs)),
        fit,
    )


def numbered(
    shards: Mapping[int, Shard],
    sample: Callable[[Mapping[str, Formula]], Sequence[Ranges]],
    count: Callable[[Mapping[str, Formula]], Sequence[CountedRows]],
    fit: Callable[[SharedVocabularies], Sequence[Fitting]],
) -> SharedVocabularies:
    """Work out the common parts of the bases of shards from the rows of each.

    ``sample``, ``count`` and ``fit`` call `Shard.sample`, `Shard.count` and `Shard.values_within_memory` of
    all shards; ``fit`` returns the errors.

    Raises
    ------
    DamagedFileError, StorageError : rows cannot be read.
    SettingsError : the memory that a feature may take is too little for its facts.
    """
    formulas: Mapping[str, Formula] = {}
    settings = next(iter(shards.values())).settings  # those of all
    if settings.computed:
        sealed = (shard.sealed_formulas() for shard in shards.values())
        known = next((formulas for formulas in sealed if formulas), {})
        formulas = weighted_formulas(settings, known)
        formulas = stepped(formulas, settings, sample(formulas))
    codecs = [*map(as_stored, settings.stored_codecs)]
    budget = settings.budget
    joint = SharedVocabularies.of(count(formulas), codecs, budget, formulas)
    # Once for the view, and not in each shard.
    reasons = {name: budget.reason_against_filter(name, size) for name, size in joint.beyond.items()}
    warn_of_exact(settings.view, {name: reason for name, reason in reasons.items() if reason})
    if not budget.with_memory:
        return joint
    fitting = fit(joint)
    if errors := [each for each in fitting if isinstance(each, SettingsError)]:
        raise max(errors, key=lambda error: error.least_bytes)  # what is enough for all
    return joint.cut_to([each for each in fitting if not isinstance(each, SettingsError)])


def figures_with(shards: Mapping[int, Shard], files: Sequence[StagedFile]) -> Figures:
    """The figures of a seal of all rows, if staged files counted; the caller holds the view's lease.

    It takes as long as a seal, and writes nothing.
    """
    logs = {number: shard.row_log.absorb() for number, shard in shards.items()}
    for file in files:
        log = logs[file.shard]
        logs[file.shard] = replace(log, files=(*log.files, file.file))
    joint = numbered_in_threads(shards, logs)
    return Figures.sum_of(in_threads(lambda number: shards[number].figures(logs[number], joint), logs))


def seal_deltas(shards: Mapping[int, Shard], check: Callable[[], object]) -> bool:
    """Lay a delta over the base of each shard. Returns False, with nothing changed, if a shard needs a new
    base. ``check`` is called before the deltas are published, and may raise.
    """
    drafts: dict[int, SnapshotFile] = {}
    with ExitStack() as unpublished:
        for number, shard in shards.items():
            shard.refresh()  # a deletion counts, too, and is loaded only by a poll
            if not shard.num_unsealed:
                continue
            draft = shard.delta_draft()
            if draft is None:
                return False
            drafts[number] = draft
            unpublished.callback(shard.snapshots.discard, draft)
        check()
        unpublished.pop_all()
    _publish(shards, drafts)
    for number in drafts:
        shards[number].refresh_sealed()
    return bool(drafts)


@contextmanager
def deleted_on_error(shards: Mapping[int, Shard], drafts: Mapping[int, Drafted]) -> Iterator[None]:
    """Delete unpublished drafts if what follows fails."""
    try:
        yield
    except BaseException:
        for number, made in drafts.items():
            shards[number].snapshots.discard(made.snapshot)
        raise


def publish_drafts(
    shards: Mapping[int, Shard], drafts: Mapping[int, Drafted], judge: Callable[[Figures], object]
) -> None:
    """Publish drafts one after the other, if the figures of all together pass; else delete them."""
    with deleted_on_error(shards, drafts):
        judge(Figures.sum_of(draft.figures for draft in drafts.values()))
    _publish(shards, {number: draft.snapshot for number, draft in drafts.items()})


def _publish(shards: Mapping[int, Shard], drafts: Mapping[int, SnapshotFile]) -> None:
    """Publish drafts one after the other; those after one that fails are deleted."""
    waiting = dict(drafts)
    try:
        for number, draft in drafts.items():
            shards[number].publish(draft)
            del waiting[number]
    except BaseException:
        for number, draft in list(waiting.items())[1:]:  # the first may have been published despite the error
            shards[number].snapshots.discard(draft)
        raise
