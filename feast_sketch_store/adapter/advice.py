"""What users are told: at ``feast apply``, about settings that would keep a view more exactly or in fewer
bytes; and once per view and process, about rows older than the view's ttl.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from feast.feature_view import FeatureView
from feast.field import Field

from feast_sketch_store.layers import SealedRows
from feast_sketch_store.rows.codecs import EXACT, MEMBERSHIP, FeatureCodec
from feast_sketch_store.rows.encoding import FeastRow
from feast_sketch_store.settings.features import is_embedding
from feast_sketch_store.settings.table import CODEC_TAG
from feast_sketch_store.settings.view_settings import ViewSettings

_logger = logging.getLogger(__name__)

_warned: set[str] = set()  # locations of views of which rows have expired

_EXACT_TAG = f'"{CODEC_TAG}": "exact"'
_MAX_NAMED = 5  # subjects of a summary
_MIN_FACTS = 10_000_000  # from here on, shards add a few per cent at most to a view; see docs/how_to/scale.md

# Texts that cover several features or views at once, by topic.
_ARRAYS, _COSTLY, _SHARDS = "arrays", "exact", "shards"
_SUMMARIES = {
    _ARRAYS: "{number} features are Arrays and lose their order and repetitions: "
    "{names}. "
    f"Where these matter, set the tag {_EXACT_TAG}. Declare the others as Sets or give them the tag "
    f'"{CODEC_TAG}": "membership"',
    _COSTLY: "{number} features are kept exactly, at all the bytes of their values: {names}. If that is "
    "too much, name a `backing_store` in feature_store.yaml, which then keeps them",
    _SHARDS: "{number} views have few facts in several shards, each with its own copy of the vocabulary: "
    f"{{names}}. For those that will not grow to {_MIN_FACTS:,} facts, run "
    "`feast-sketch rebuild VIEW --shards 1` and remove `shards`",
}


@dataclass(frozen=True)
class Hint:
    """A piece of advice: its topic, the feature or view it concerns, and its text."""

    topic: str
    subject: str
    text: str


def summary(hints: Iterable[Hint]) -> str:
    """The text of one or more hints: one sentence per topic, however many features it concerns."""
    by_topic: dict[str, list[Hint]] = {}
    for hint in hints:
        by_topic.setdefault(hint.topic, []).append(hint)
    return ". ".join(_told(topic, of_topic) for topic, of_topic in by_topic.items())


def _told(topic: str, hints: list[Hint]) -> str:
    if len(hints) == 1:
        return hints[0].text
    names = ", ".join(hint.subject for hint in hints[:_MAX_NAMED])
    if len(hints) > _MAX_NAMED:
        names += f" and {len(hints) - _MAX_NAMED} more"
    return _SUMMARIES[topic].format(number=len(hints), names=names)


def advice(table: FeatureView, settings: ViewSettings, sealed: SealedRows | None) -> Iterator[Hint]:
    """Hints for the user who applies a view.

    Parameters
    ----------
    settings : of the view.
    sealed : its sealed rows, if it has some.
    """
    yield from _array_hints(table, settings, sealed)
    yield from _costly_hints(table, settings, sealed)
    if sealed is not None:
        yield from _shard_hints(table.name, sealed)


def _array_hints(table: FeatureView, settings: ViewSettings, sealed: SealedRows | None) -> Iterator[Hint]:
    for field in table.features:
        codec, where = settings.features[field.name].codec, f"feature {field.name!r} of view {table.name!r}"
        if CODEC_TAG in (field.tags or {}) or codec.name != MEMBERSHIP or codec.is_set:
            continue
        numbers = ", and floats seldom repeat" if codec.element_kind in ("float", "double") else ""
        yield Hint(
            _ARRAYS,
            f"{table.name}.{field.name}",
            f"{where} is an Array and loses its order and repetitions{numbers}. If they "
            f"matter, give the field the tag {_EXACT_TAG}{_cost_of_order(field.name, sealed)}; if not, "
            f'declare it as a Set or give it the tag "{CODEC_TAG}": "membership"',
        )


def _cost_of_order(name: str, sealed: SealedRows | None) -> str:
    """The bytes that an Array takes now, and would take with its order."""
    features = [] if sealed is None else sealed.features(name)
    if sealed is None or not features:
        return ", which takes about log2(different values) bits an element"
    exactly = 0.0
    for feature in features:
        bits = max(1, feature.num_values - 1).bit_length()
        exactly += feature.num_facts * bits / 8
        exactly += 0 if feature.vocabulary is None else feature.vocabulary.size_bytes
    now = sum(layer.size_bytes_of(name) for layer in sealed.layers if name in layer.features)
    return f", which takes at least about {round(exactly)} bytes instead of {round(now)}"


def _costly_hints(table: FeatureView, settings: ViewSettings, sealed: SealedRows | None) -> Iterator[Hint]:
    """Hints about features that are kept exactly because of their type, and may be large."""
    for field in table.features:
        codec = settings.features[field.name].codec
        is_large = codec.is_collection or codec.element_kind == "message" or codec.value_field == "json_val"
        if codec.name != EXACT or not is_large or not settings.features[field.name].by_type:
            continue
        kind = "an embedding" if is_embedding(field) else f"of type {field.dtype}"
        yield Hint(
            _COSTLY,
            f"{table.name}.{field.name}",
            f"feature {field.name!r} of view {table.name!r} is {kind} and kept exactly, at "
            f"{_exact_bytes(field, codec, sealed)}. If that is too much, name a `backing_store` in "
            "feature_store.yaml, which then keeps it",
        )


def _shard_hints(view: str, sealed: SealedRows) -> Iterator[Hint]:
    """A hint about a view whose shards cost more than they are worth."""
    number, sizes = len(sealed.layers), [layer.vocabulary_bytes for layer in sealed.layers]
    if number > 1 and sealed.num_facts < _MIN_FACTS:
        yield Hint(
            _SHARDS,
            view,
            f"view {view!r} has {sealed.num_facts:,} facts in {number} shards, each with its own copy of "
            f"the vocabulary: {sum(sizes) - max(sizes):,} of "
            f"{sum(layer.size_bytes for layer in sealed.layers):,} "
            f"bytes are copies. If it will not grow to {_MIN_FACTS:,} facts, run "
            f"`feast-sketch rebuild {view} --shards 1` and remove `shards`",
        )


def _exact_bytes(field: Field, codec: FeatureCodec, sealed: SealedRows | None) -> str:
    if sealed is not None and field.name in sealed.codecs:
        size = sum(layer.size_bytes_of(field.name) for layer in sealed.layers)
        return f"{round(size)} bytes for {sealed.num_entities} rows"
    width = codec.element_bits / 8
    length = getattr(field, "vector_length", 0)
    if width and length:
        return f"{round(width * length)} bytes a row"
    return f"{width:g} bytes an element" if width else "the bytes of its values"


def warn_of_read(
    location: str, view: str, num_expired: int, num_read: int, ttl_microseconds: int | None
) -> None:
    """Warn if a read withheld rows; ``location`` is that of the view's storage."""
    if ttl_microseconds is not None and location not in _warned:
        subject = f"{num_expired} of {num_read} rows read"
        _warn_of_expired(location, view, subject, num_expired, ttl_microseconds)


def warn_of_write(location: str, view: str, rows: Sequence[FeastRow], ttl_microseconds: int | None) -> None:
    """Warn if rows have expired before they are written."""
    if ttl_microseconds is not None and location not in _warned:
        limit = datetime.now(UTC) - timedelta(microseconds=ttl_microseconds)
        moments = (row[2] if row[2].tzinfo else row[2].replace(tzinfo=UTC) for row in rows)
        num_expired = sum(moment < limit for moment in moments)
        subject = f"{num_expired} of {len(rows)} rows written"
        _warn_of_expired(location, view, subject, num_expired, ttl_microseconds)


def _warn_of_expired(location: str, view: str, subject: str, num_expired: int, ttl_microseconds: int) -> None:
    if not num_expired:
        return
    _warned.add(location)
    _logger.warning(
        "%s of feature view %r are older than its ttl of %s: with `ttl: {expire: true}`, reads withhold "
        "their values and answer OUTSIDE_MAX_AGE. They stay on disk for `ttl: {keep}` longer, so a longer "
        "ttl, or `expire: false`, brings them back",
        subject,
        view,
        timedelta(microseconds=ttl_microseconds),
    )
