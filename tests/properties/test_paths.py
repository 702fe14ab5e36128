"""Folder names: no two names share one, and none leads out of the store's folder."""

import re
from pathlib import Path, PurePosixPath, PureWindowsPath

from hypothesis import example, given, settings
from hypothesis import strategies as st

from feast_sketch_store.storage.names import folder_name
from feast_sketch_store.storage.stores import StorePlace
from tests.helpers.cases import for_each

REPEATABLE = settings(derandomize=True, deadline=None, database=None)
HOSTILE = ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\x00b", "a\n", " a", "History", "HISTORY"]
HOSTILE += ["é", "e\u0301", "\ud800", "a" * 65, "a" * 300, "a~b", "-rf", "%41", "COM1", "ß" * 100, "İ"]
PLAIN = st.from_regex(r"[a-z0-9_][a-z0-9_-]{0,63}", fullmatch=True)
NAMES = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=80),
    st.text(st.sampled_from("aA_-~./\\é \ud800"), max_size=5),
    PLAIN,
)


@REPEATABLE
@given(PLAIN)
def test_a_plain_name_stands_for_itself(name):
    assert folder_name(name) == name


@REPEATABLE
@given(st.lists(NAMES, unique=True, max_size=50))
@example([*HOSTILE, "history", "a", "a-b", *map(folder_name, HOSTILE)])
def test_no_two_names_share_a_folder(names):
    assert len({folder_name(name).casefold() for name in names}) == len(names)


@REPEATABLE
@given(NAMES)
def test_the_folder_of_a_folder_name_is_not_that_folder_again(name):
    """Nothing is gained by naming a view after the folder of another one."""
    folder = folder_name(name)
    assert folder == name or folder_name(folder) != folder


@REPEATABLE
@given(NAMES)
def test_a_folder_name_is_one_short_safe_component(name):
    folder = folder_name(name)
    hashed = r"([a-z0-9_][a-z0-9_-]{0,39})?~[0-9a-f]{16}"
    assert re.fullmatch(hashed if folder != name else r"[a-z0-9_][a-z0-9_-]{0,63}", folder)
    assert PurePosixPath(folder).parts == PureWindowsPath(folder).parts == (folder,)


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


@REPEATABLE
@given(NAMES, NAMES)
@example("shop", "history")
@example("..", "../../x")
def test_every_view_lies_two_folders_below_the_store(project, view):
    path = StorePlace(Path("/store")).view(project, view).path
    assert path == StorePlace(Path("/store")).project(project).path / folder_name(view)
    assert path.parent.parent == Path("/store")
    assert ".." not in path.parts
