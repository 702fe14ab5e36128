"""Copy the views of a repository between stores: from or to a local folder or a bucket.

A copy rebuilds the target's view from the source's row log. The rows are written and sealed at the target,
and one commit then replaces the old rows. So an interrupted copy has changed nothing, and readers of the
target see all or nothing. Finally both sides are read again and compared.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mmh3
from feast import FeatureStore

from feast_sketch_store.errors import StorageError
from feast_sketch_store.online_store import seal_policy
from feast_sketch_store.operations.maintenance import table_of
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.storage.stores import StorePlace
from feast_sketch_store.view.live import expire_before_of
from feast_sketch_store.view.opening import AnyView, open_as_stored, open_view, undivided
from feast_sketch_store.view.registry import named
from feast_sketch_store.view.settings import resolve
from feast_sketch_store.view.sharded import ShardedView, replace_rows
from feast_sketch_store.view.view import Dropped

_MODULUS = 1 << 128


@dataclass(frozen=True)
class Content:
    """What a view holds: the number of entities that count, and a checksum of their rows in any order."""

    entities: int
    checksum: int


@dataclass(frozen=True)
class Copied:
    """The result of a copy: the number of entities on both sides, and whether the target had them before."""

    entities: int
    was_there: bool


def copy(
    store: FeatureStore,
    view: str,
    source: str,
    target: str,
    confirm: Callable[[Dropped | None], bool] | None = None,
) -> Copied | None:
    """Copy a view from one store to another, and replace the target's rows.

    Rows that are written to the target during the copy are kept.

    Parameters
    ----------
    store, view : the repository and the name of a feature view.
    source, target : paths of stores, as in ``feature_store.yaml``. URLs use its ``storage_options``.
    confirm : called before rows of the target are dropped that the source lacks; its argument is None if the
        target's rows cannot be read.

    Returns
    -------
    None if it was not confirmed, and nothing has changed. A view without rows is not copied.

    Raises
    ------
    StorageError : a side cannot be read or written, the source was written during the copy, or the target
        does not have the source's rows afterwards.
    DamagedFileError : a file of the source is damaged.
    """
    opened = {path: _open(store, view, path, path == source) for path in (source, target)}
    if opened[source].storage.identity == opened[target].storage.identity:
        raise StorageError(f"{source}: source and target are the same store")
    at_source, at_target = opened[source], opened[target]
    wanted = content_of(at_source)
    if wanted == content_of(at_target):
        return Copied(wanted.entities, True)
    if wanted.entities:
        at_target.prepare()
        if not _replaced(at_source, at_target, confirm):
            return None
        _check(at_source, at_target, wanted)
    return Copied(wanted.entities, False)


def content_of(view: AnyView) -> Content:
    """The content of a view, read again from its row log."""
    entities = checksum = 0
    for part in view.parts.values():
        rows = part.kept_rows()
        if rows is None:
            continue
        entities += len(rows.keys)
        for _, table in rows.batches():
            for row in table.to_pylist():
                # One side may lack a column that has only nulls.
                present = sorted((name, value) for name, value in row.items() if value is not None)
                checksum += mmh3.mmh3_x64_128_uintdigest(repr(present).encode())
    return Content(entities, checksum % _MODULUS)


def _replaced(source: AnyView, target: AnyView, confirm: Callable[[Dropped | None], bool] | None) -> bool:
    """Replace the rows of the target by those of the source; False if it was not confirmed."""
    if isinstance(target, ShardedView):
        return replace_rows(target, [part.storage for part in source.parts.values()], confirm)
    own = undivided(source, "copied to a view without shards")
    return target.rebuild(lambda _: own.storage, confirm)


def _check(source: AnyView, target: AnyView, wanted: Content) -> None:
    """Check that the target has the content of the source.

    Raises
    ------
    StorageError : it does not, or the source was written meanwhile.
    """
    where = f"{source.storage.location} -> {target.storage.location}"
    if content_of(source) != wanted:
        raise StorageError(
            f"{where}: the source was written while it was copied; stop its writers, and run again"
        )
    semantics = named(target.settings.semantics)
    expire_before = expire_before_of(target.settings.ttl_microseconds)
    with target.unchanging():
        problems = [
            problem
            for number, part in target.parts.items()
            for problem in verify_view(
                part.storage,
                target.settings.codecs,
                expire_before,
                semantics=semantics,
                shard=(number, len(target.parts)),
            ).problems
        ]
    if problems:
        raise StorageError(f"{where}: what arrived is not sound: {problems[0]}")
    if content_of(target) != wanted:
        raise StorageError(
            f"{where}: the target holds other rows than the source: it was written during the copy, or bytes "
            "were changed on the way; run again"
        )


def _open(store: FeatureStore, view: str, path: str, is_source: bool) -> AnyView:
    """A view in a given store, with the settings of the repository."""
    config = store.config
    options, table = config.online_store, table_of(store, view)
    place = StorePlace.of(config.repo_path, path, options.storage_options, read_only=is_source)
    settings = resolve(options, table, config.repo_path)
    storage, policy = place.view(config.project, view), seal_policy(options)
    if is_source:
        return open_as_stored(storage, settings, policy, 0.0)
    return open_view(storage, settings, policy, 0.0)
