"""Increments with ids: which of them count, in a table of rows and beside what entities remember."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.errors import DamagedFileError, RowError
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.count_log import counts_column
from feast_sketch_store.rows.encoding import deletions
from feast_sketch_store.rows.increments import counted_once
from feast_sketch_store.rows.list_log import to_list_log
from feast_sketch_store.view.semantics import named
from tests.helpers.keys import user_key
from tests.helpers.values import make_value

NOW = datetime(2026, 5, 1, tzinfo=UTC)
COUNTED = FeatureCodec("author", "string_list_val", "counts")
IDS = FeatureCodec("ids", "string_list_val", "list", ids_of="author")
CODECS = [COUNTED, IDS]


def row(user, authors, ids=None, event=NOW):
    values = {"author": make_value("string_list_val", authors)}
    if ids is not None:
        values["ids"] = make_value("string_list_val", ids)
    return user_key(user), values, event, None


def log(*rows):
    return to_list_log(rows, CODECS)


def nothing(codec, hashes, vocabulary):
    return np.zeros(0, np.int64), np.zeros(0, np.int32)


def counted(table, known=nothing):
    table = counted_once(table, CODECS, known)
    return table[counts_column("author")].to_pylist(), table["ids"].to_pylist()


def test_the_first_of_equal_ids_counts():
    table = log(row(1, ["a", "b"], ["x", "y"]), row(2, ["a"], ["x"]), row(1, ["a", "c"], ["x", "z"]))
    counts, ids = counted(table)
    assert counts == [[1, 1], [1], [0, 1]]
    assert ids == [["x", "y"], ["x"], ["z"]]


def test_what_an_entity_remembers_does_not_count_again():
    asked = []

    def known(codec, hashes, vocabulary):
        asked.append((codec, len(hashes)))
        (x,) = (vocabulary.values.to_pylist().index(name) for name in [b"x"])
        return np.array([0, 0]), np.array([x, -1])

    counts, ids = counted(log(row(1, ["a", "b"], ["x", "y"])), known)
    assert (counts, ids) == ([[0, 1]], [["y"]])
    assert asked == [(IDS, 1)]


def test_a_deletion_forgets():
    everything = lambda codec, hashes, vocabulary: (  # noqa: E731
        np.repeat(np.arange(len(hashes)), len(vocabulary)),
        np.tile(np.arange(len(vocabulary)), len(hashes)),
    )
    before, after = log(row(1, ["a"], ["x"])), log(row(1, ["a"], ["x"]), row(1, ["a"], ["x"]))
    gone = deletions([user_key(1)], NOW)
    table = pa.concat_tables([before, gone, after], promote_options="default").combine_chunks()
    counts, _ = counted(table, everything)
    assert counts == [[1], None, [1], [0]]  # the deletion hides the first row


def test_ids_of_merged_rows_were_counted():
    """A process may read them and rows that were written meanwhile together."""
    written = log(row(1, ["a"], ["x"]), row(1, ["a", "a"], ["y", "z"]), row(2, ["a"], ["x"]))
    semantics = named("append", CODECS)
    (merged,) = (table for _, table in semantics.fold(lambda columns: iter([written.slice(0, 2)])).batches())
    assert merged["author"].to_pylist() == [["a"]]
    table = pa.concat_tables([merged, written], promote_options="default").combine_chunks()
    assert counted(table) == ([[3], [0], [0, 0], [1]], [["x", "y", "z"], [], [], ["x"]])
    gone = deletions([user_key(1)], NOW)
    table = pa.concat_tables([merged, gone, written], promote_options="default").combine_chunks()
    assert counted(table)[0] == [[3], None, [1], [1, 1], [1]]


def test_rows_without_ids_get_the_same_ones_again():
    rows = row(1, ["a", "a", "b"]), row(2, ["a"]), row(1, ["a"], event=NOW + timedelta(seconds=1))
    first, again = log(*rows)["ids"].to_pylist(), log(*reversed(rows))["ids"].to_pylist()
    assert first == again[::-1]
    assert len({*first[0], *first[2]}) == 4  # other places, values or events have other ids
    assert first[1][0] == first[0][0]  # an id belongs to its entity


def test_one_id_for_two_increments_is_refused():
    with pytest.raises(RowError, match="row 1 of the batch has the id 'x' in feature 'ids', which row 0 has"):
        log(row(1, ["a"], ["x"]), row(1, ["b"], ["x"]))
    assert len(log(row(1, ["a"], ["x"]), row(2, ["b"], ["x"]), row(1, ["a"], ["x"]))) == 3


def test_ids_that_do_not_fit_their_values_are_damage():
    table = log(row(1, ["a", "b"], ["x", "y"]))
    ids = pa.array([["x"]], table.schema.field("ids").type)
    table = table.set_column(table.column_names.index("ids"), "ids", ids)
    with pytest.raises(DamagedFileError, match="row 0 has 1 ids in feature 'ids' and 2 values"):
        counted(table)
