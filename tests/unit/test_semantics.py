"""How rows of an entity combine is stored with the view, for readers that open it."""

from datetime import UTC, datetime

import pytest
from feast.protos.feast.types.Value_pb2 import StringList, Value

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.rows.codecs import LIST, FeatureCodec
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.opening import ReadOnlyView, open_view
from feast_sketch_store.view.semantics import SEMANTICS
from tests.helpers.keys import user_key


def test_a_process_that_does_not_know_the_semantics_refuses_the_view_by_name(tmp_path, monkeypatch):
    read = FeatureCodec("read", "string_list_val", LIST, listing=Listing(1_000_000))
    settings = ViewSettings("history", 1e-9, {"read": FeatureSettings(read, 0.0, 10)}, semantics="append")
    view = open_view(LocalStorage(tmp_path / "shop"), settings)
    event = datetime(2026, 1, 1, tzinfo=UTC)
    view.write([(user_key(1), {"read": Value(string_list_val=StringList(val=["a"]))}, event, None)])
    assert view.seal()
    ReadOnlyView(view.storage, "history", 0.0)
    monkeypatch.delitem(SEMANTICS, "append")
    with pytest.raises(DamagedFileError, match=r"shop.*'append', which this process does not know"):
        ReadOnlyView(view.storage, "history", 0.0)
