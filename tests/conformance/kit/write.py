"""Writes the kit: folders of views, and the expected answers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conformance.kit.answers import key_json, read
from tests.conformance.kit.computed import formulas
from tests.conformance.kit.hostile import hostile_views
from tests.conformance.kit.logs import logged
from tests.conformance.kit.rules import clause_of
from tests.conformance.kit.sharded import shards
from tests.conformance.kit.values import code_vectors, hash_vectors
from tests.conformance.kit.views import VIEWS


def write_kit(folder: Path) -> int:
    """Write all test vectors into a folder. Returns the number of files."""
    _write_json(folder / "vectors" / "hashes.json", hash_vectors())
    _write_json(folder / "vectors" / "codes.json", code_vectors())
    reads = []
    further = {make.__name__: make for make in (formulas, logged, shards)}
    for name, make in {**VIEWS, **further}.items():
        view = make()
        _write(folder / "views" / name, view.contents())
        keys = [key_json(key) for key in view.keys]
        rows = read(folder / "views" / name, view.keys)
        about = (make.__doc__ or "").strip()
        told = {"about": about, "computed": view.computed, "keys": keys, "rows": rows}
        reads.append({"view": f"views/{name}", **told})
    _write_json(folder / "vectors" / "reads.json", reads)
    refusals = []
    for hostile in hostile_views():
        _write(folder / "hostile" / hostile.name, hostile.contents)
        keys = [key_json(key) for key in hostile.keys]
        told = {"rule": hostile.rule, "breaks": clause_of(hostile.name), "keys": keys}
        refusals.append({"view": f"hostile/{hostile.name}", **told})
    _write_json(folder / "vectors" / "hostile.json", refusals)
    return sum(path.is_file() for path in folder.rglob("*"))


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _write_json(path: Path, vectors: Mapping[str, Any] | Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(vectors, indent=1, ensure_ascii=False) + "\n", "utf-8")
