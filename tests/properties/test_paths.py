"""Folder names: no two names share one, and none leads out of the store's folder."""

from pathlib import Path, PurePosixPath, PureWindowsPath

from hypothesis import given, settings
from hypothesis import strategies as st

from feast_sketch_store.storage.names import folder_name
from feast_sketch_store.storage.stores import StorePlace

REPEATABLE = settings(derandomize=True, deadline=None, database=None)
NAMES = st.one_of(
    st.text(max_size=80),
    st.text(st.sampled_from("aA_-~./\\é \ud800"), max_size=5),
    st.from_regex(r"[a-z0-9_][a-z0-9_-]{0,63}", fullmatch=True),
)


@REPEATABLE
@given(st.lists(NAMES, unique=True, max_size=50))
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
def test_a_folder_name_is_one_short_plain_component(name):
    folder = folder_name(name)
    assert folder.isascii()
    assert folder.isprintable()
    assert 1 <= len(folder) <= 64
    assert PurePosixPath(folder).parts == PureWindowsPath(folder).parts == (folder,)
    assert not folder.startswith(("-", ".", " "))


@REPEATABLE
@given(NAMES, NAMES)
def test_every_view_lies_two_folders_below_the_store(project, view):
    path = StorePlace(Path("/store")).view(project, view).path
    assert path.parent.parent == Path("/store")
    assert ".." not in path.parts
