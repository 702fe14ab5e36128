"""Names as folder names."""

import re
from pathlib import Path

from feast_sketch_store.storage.names import folder_name
from feast_sketch_store.storage.stores import StorePlace
from tests.helpers.cases import for_each

HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\x00b",
    "a\n",
    " a",
    "History",
    "HISTORY",
    "é",
    "e\u0301",
    "\ud800",
    "a" * 65,
    "a" * 300,
    "a~b",
    "-rf",
    "%41",
    "COM1",
    "ß" * 100,
    "İ",
]


@for_each("name", ["history", "user_history", "h", "_x", "9", "a-b", "a" * 64])
def test_a_plain_name_stands_for_itself(name):
    assert folder_name(name) == name


@for_each("name", HOSTILE)
def test_any_other_name_becomes_one_safe_component(name):
    assert re.fullmatch(r"([a-z0-9_][a-z0-9_-]{0,39})?~[0-9a-f]{16}", folder_name(name))


def test_no_two_names_share_a_folder():
    names = [*HOSTILE, "history", "a", "a-b", *map(folder_name, HOSTILE)]
    assert len(set(map(folder_name, names))) == len(set(names))


# Folders that exist on disk: a change would lose them.
@for_each(
    ("name", "folder"),
    [
        ("History", "history~a604edf6bc39f9d9"),
        ("../x", "x~c388c52125c33bd4"),
        ("", "~e4a6a0577479b2b4"),
        ("ключ", "~4cd42d91d185c820"),
    ],
)
def test_vectors(name, folder):
    assert folder_name(name) == folder


def test_views_lie_in_their_projects_folder():
    store = Path("/store")
    place = StorePlace(store)
    assert place.project("shop").path == store / "shop"
    assert place.view("shop", "history").path == store / "shop" / "history"
    assert place.view("..", "../../x").path.parent.parent == store
