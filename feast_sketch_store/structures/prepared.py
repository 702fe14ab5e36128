"""Features in the form in which the kernel reads single entities; see `PreparedRows`."""

from feast_sketch_store.kernel import PreparedRows
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary


def begin_unknown(rows: PreparedRows) -> None:
    """Add a feature that the rows do not have."""
    rows.feature(b"", False, 0, None, None, None)


def begin_feature(rows: PreparedRows, codec: FeatureCodec, vocabulary: Vocabulary | None) -> None:
    """Begin a feature; its ids are those of the vocabulary, if there is one."""
    arrays = {} if vocabulary is None else vocabulary.to_arrays()
    values, offsets, data = (arrays.get(name) for name in ("values", "offsets", "data"))
    rows.feature(codec.tag, codec.is_collection, codec.element_wire_type, values, offsets, data)
