"""Views and shards that a seal leaves without rows: all ways of reading answer, as a dictionary does."""

import pytest

from feast_sketch_store.operations import maintenance
from tests.helpers.length import by_length, combined
from tests.helpers.view_model import IN_ONE, KINDS, OLD, USERS, Model

# Whose rows go in each round, and when those are from that take their place: they expired.
ROUNDS = {1: [(USERS, None), (USERS, OLD)], 4: [(IN_ONE, None), (USERS, OLD)]}
# Of each way to keep rows, one in shards or in one; the others differ in how one shard keeps a set.
FEW = [("auto", 4), ("score", 4), ("list", 4), ("growing", 4), ("clustered", 1), ("static", 1)]
ALL = FEW + [(kind, 1) for kind in KINDS if (kind, 1) not in FEW]


@pytest.mark.slow
@pytest.mark.has_long_form
@pytest.mark.parametrize(("kind", "num_shards"), by_length(FEW, ALL))
def test_no_read_fails_and_pushed_rows_are_seen(tmp_path, monkeypatch, kind, num_shards):
    monkeypatch.setattr(maintenance, "_SAMPLES", 500)
    model = Model(tmp_path, kind, num_shards)
    model.write(USERS)
    model.seal()
    model.check()
    for users, event in ROUNDS[num_shards]:
        model.delete(users)
        if event is not None:
            model.write(users, event)
        model.check()
        model.seal()
        model.check()
        model.check_files()
        model.write(IN_ONE[:1])  # on top of what is empty
        model.check()
        if kind not in ("list", "growing"):
            model.delete(IN_ONE[:1])
            model.seal_delta()  # a delta that deletes, and has no row
            model.check()
        model.write(USERS)
        model.seal()
        model.check()
        model.check_files()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seals"), combined(["score", "bloom", "growing"], [True, False]))
def test_an_emptied_view_that_is_divided_is_sealed(tmp_path, kind, seals):
    model = Model(tmp_path, kind, 1)
    model.write(USERS)
    model.check()
    if seals:
        model.seal()
    model.delete(USERS)
    for num_shards in (4, 2):  # the second time, from a log without commits
        model.reshard(num_shards)
        model.check()
        model.check_files()
    model.write(IN_ONE)
    model.check()
    model.seal()
    model.check_files()
