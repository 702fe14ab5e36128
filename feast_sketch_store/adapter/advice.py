"""Messages to users: at ``feast apply``, about settings that would keep a view more exactly or in fewer
bytes; and once per view and process, about rows older than the view's ttl.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from feast.feature_view import FeatureView
from feast.field import Field

from feast_sketch_store.layers import SealedRows
from feast_sketch_store.rows.codecs import EXACT, MEMBERSHIP, FeatureCodec
from feast_sketch_store.rows.encoding import FeastRow
from feast_sketch_store.rows.limits import aware
from feast_sketch_store.settings.features import is_embedding
from feast_sketch_store.settings.resolve import own_fields
from feast_sketch_store.settings.table import CODEC_TAG
from feast_sketch_store.settings.values import duration_text
from feast_sketch_store.settings.view_settings import ViewSettings

_logger = logging.getLogger(__name__)

_warned: set[str] = set()  # locations of views of which rows have expired

_MAX_NAMED = 5  # subjects of a text
_MIN_FACTS = 10_000_000  # from here on, shards add a few per cent at most to a view; see docs/how_to/scale.md

# What is said of all features or views that a topic concerns.
_ARRAYS = (
    "these features are Arrays and lose their order and repetitions: {names}. Where these matter, set the "
    f'tag "{CODEC_TAG}": "exact", which takes about log2(different values) bits an element. Declare the '
    f'others as Sets or give them the tag "{CODEC_TAG}": "membership"'
)
_COSTLY = (
    "these features are kept exactly because of their type: {names}. If that is too much, name a "
    "`backing_store` in feature_store.yaml, which then keeps them"
)
_SHARDS = (
    "these views have few facts in several shards, each with its own copy of the vocabulary: {names}. For "
    f"those that will not grow to {_MIN_FACTS:,} facts, run `feast-sketch reshard VIEW --shards 1` and "
    "remove `shards`"
)


class Hint(NamedTuple):
    """A piece of advice: what is said of its topic, and the feature or view it concerns, with its figures."""

    text: str
    subject: str


def summary(hints: Iterable[Hint]) -> str:
    """The text of one or more hints: once what is said of a topic, however many features it concerns."""
    by_text: dict[str, list[str]] = {}
    for hint in hints:
        by_text.setdefault(hint.text, []).append(hint.subject)
    return ". ".join(text.format(names=_listed(subjects)) for text, subjects in by_text.items())


def _listed(subjects: Sequence[str]) -> str:
    names = ", ".join(subjects[:_MAX_NAMED])
    more = len(subjects) - _MAX_NAMED
    return f"{names} and {more} more" if more > 0 else names


def advice(table: FeatureView, settings: ViewSettings, sealed: SealedRows | None) -> Iterator[Hint]:
    """Hints for the user who applies a view, by its settings and its sealed rows, if it has some."""
    for field in own_fields(table):
        declared, name = settings.features[field.name], f"{table.name}.{field.name}"
        codec = declared.codec
        is_array = codec.name == MEMBERSHIP and not codec.is_set
        if is_array and CODEC_TAG not in (field.tags or {}):
            yield Hint(_ARRAYS, name + _cost_of_order(codec, sealed))
        is_large = codec.is_collection or codec.element_kind == "message" or codec.value_field == "json_val"
        if codec.name == EXACT and is_large and declared.by_type:
            kind = "an embedding" if is_embedding(field) else f"of type {field.dtype}"
            yield Hint(_COSTLY, f"{name} ({kind}, {_exact_bytes(field, codec, sealed)})")
    if sealed is not None and len(sealed.bases) > 1 and sealed.num_facts < _MIN_FACTS:
        sizes = [base.vocabulary_bytes for base in sealed.bases]
        copies, whole = sum(sizes) - max(sizes), sum(base.size_bytes for base in sealed.bases)
        figures = (
            f"{sealed.num_facts:,} facts in {len(sizes)} shards; {copies:,} of {whole:,} bytes are copies"
        )
        yield Hint(_SHARDS, f"{table.name} ({figures})")


def _cost_of_order(codec: FeatureCodec, sealed: SealedRows | None) -> str:
    """The bytes that an Array takes now and would take with its order, if these are known to be more."""
    features = [] if sealed is None else sealed.features(codec.feature)
    if sealed is None or not features:
        return " (floats, which seldom repeat)" if codec.element_kind in ("float", "double") else ""
    exactly = 0.0
    for feature in features:
        bits = max(1, feature.num_values - 1).bit_length()
        exactly += feature.num_facts * bits / 8
        exactly += 0 if feature.vocabulary is None else feature.vocabulary.size_bytes
    now = _sealed_bytes(codec.feature, sealed)
    return f" (in order at least about {round(exactly)} bytes instead of {now})" if exactly > now else ""


def _exact_bytes(field: Field, codec: FeatureCodec, sealed: SealedRows | None) -> str:
    if sealed is not None and field.name in sealed.codecs:
        return f"{_sealed_bytes(field.name, sealed)} bytes for {sealed.num_entities} rows"
    width = codec.element_bits / 8
    length = getattr(field, "vector_length", 0)
    if width and length:
        return f"{round(width * length)} bytes a row"
    return f"{width:g} bytes an element" if width else "the bytes of its values"


def _sealed_bytes(feature: str, sealed: SealedRows) -> int:
    return round(sum(layer.size_bytes_of(feature) for layer in sealed.layers if feature in layer.features))


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
        num_expired = sum(aware(row[2]) < limit for row in rows)
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
        duration_text(timedelta(microseconds=ttl_microseconds)),
    )
