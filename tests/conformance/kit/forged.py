"""Files that are not snapshots, and manifests that are not valid."""

import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mmh3

from feast_sketch_store.snapshot.format import FORMAT_VERSION
from feast_sketch_store.snapshot.manifest import MAX_MANIFEST_BYTES, LayerFiles, Manifest, checksum_of
from tests.conformance.kit.views import CREATED_BY, SealedView, part_file, snapshot_name

_NAME, _DTYPE, _SHAPE = range(3)  # of an array in a header
_SIZES = {"U64": 8, "I64": 8, "I32": 4, "U8": 1}
Forged = Iterator[tuple[str, str, dict[str, bytes]]]  # a name, the rule that is broken, and files


def forged_files(view: SealedView) -> Forged:
    """Snapshots whose base is not a valid file, with a manifest that fits it."""
    contents = view.contents()
    (base_name,) = (name for name in contents if name.endswith(".base.sketch"))
    whole = contents[base_name]
    for rule, label, content in _contents(whole):
        yield f"{rule} {label}".replace(" ", "-"), rule, _published(contents, base_name, content)


def _published(contents: dict[str, bytes], base_name: str, content: bytes) -> dict[str, bytes]:
    """The files of a view with another base, and a manifest that fits them."""
    (manifest_name,) = (name for name in contents if name.endswith(".json"))
    manifest = Manifest.decode(contents[manifest_name], manifest_name)
    files = {**manifest.own.files, "base": part_file(base_name.rpartition("/")[2], content)}
    told = Manifest(manifest.number, CREATED_BY, (LayerFiles(manifest.own.row_log_version, files),))
    return {**contents, base_name: content, manifest_name: told.encode()}


def _contents(whole: bytes) -> Iterator[tuple[str, str, bytes]]:
    """The rule, what is wrong in words, and the content."""
    start, own = header_of(whole)
    packed, payload = whole[24:start], whole[start:]
    yield "container.size", "an empty file", b""
    yield "container.size", "five bytes", whole[:5]
    yield "container.size", "a header of 4 MiB", (2**22 + 8).to_bytes(8, "little") + whole[8:]
    yield "container.size", "a header behind the end", len(whole).to_bytes(8, "little") + whole[8:]
    yield "container.size", "cut off", whole[:-1]
    yield "container.size", "a byte more", whole + b"\0"
    yield "container.header", "not compressed", _file(_canonical_text(own).encode(), payload)
    yield "container.header", "a stream cut off", _file(packed.rstrip(b"\0")[:-1], payload)
    yield "container.header", "more behind the stream", _file(packed + bytes(64), payload)
    yield "container.header", "5 MiB of spaces", _file(zlib.compress(b" " * (5 << 20)), payload)
    yield "container.header", "no JSON", _file(zlib.compress(b"{"), payload)
    yield "container.header", "no object", _file(zlib.compress(b"[]"), payload)
    yield "container.checksum", "another header", whole[:30] + bytes([whole[30] ^ 1]) + whole[31:]
    offset = _offsets(start, own)["presence.bucket_bounds"]
    changed = whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :]
    yield "container.checksum", "another byte of an array", changed

    def forge(change: Callable[[dict[str, Any]], object]) -> bytes:
        own = header_of(whole)[1]
        change(own)
        return _forged(own, payload)

    yield "container.version", "version 2", forge(lambda own: own.update(format_version=FORMAT_VERSION + 1))
    yield "container.version", "a version in quotes", forge(lambda own: own.update(format_version="1"))
    yield "container.header", "without a description", forge(lambda own: own.pop("description"))
    yield "container.header", "without arrays", forge(lambda own: own.pop("arrays"))
    yield ("container.header", "an array without a checksum", forge(lambda own: own["arrays"][0].pop()))
    yield (
        "container.header",
        "words with a checksum",
        forge(lambda own: next(e for e in own["arrays"] if e[0].endswith(".words")).append("0" * 16)),
    )
    for label, part, value in (
        ("a type of floats", _DTYPE, "F64"),
        ("a name that is a number", _NAME, 5),
        ("a negative length", _SHAPE, [-1]),
        ("a length with a point", _SHAPE, [1.0]),
        ("a length that is true", _SHAPE, [True]),
        ("no lengths", _SHAPE, []),
        ("five lengths", _SHAPE, [1] * 5),
        ("a length of 49 bits", _SHAPE, [2**49, 0]),
    ):
        yield "container.arrays", label, forge(partial(_tell_first, part, value))
    yield "container.arrays", "another order", forge(lambda own: own["arrays"].reverse())
    yield (
        "container.arrays",
        "a name twice",
        forge(lambda own: own["arrays"][1].__setitem__(_NAME, own["arrays"][0][_NAME])),
    )
    yield from _blocks(whole)


def _tell_first(part: int, value: object, own: dict[str, Any]) -> None:
    own["arrays"][0][part] = value


def header_of(whole: bytes) -> tuple[int, dict[str, Any]]:
    """Where the arrays of a file begin, and the content of its header."""
    start = 8 + int.from_bytes(whole[:8], "little")
    return start, json.loads(zlib.decompressobj().decompress(whole[24:start]))


def _offsets(start: int, own: dict[str, Any]) -> dict[str, int]:
    """Where the arrays begin, by name, if the first one begins at ``start``."""
    sizes = [_SIZES[dtype] * math.prod(shape) for _, dtype, shape, *_ in own["arrays"]]
    ends = itertools.accumulate(sizes, initial=start)
    return {entry[_NAME]: end for entry, end in zip(own["arrays"], ends, strict=False)}


def _blocks(whole: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Arrays whose blocks do not match their checksums."""
    start, own = header_of(whole)
    places = [*_offsets(start, own).values(), len(whole)]
    names = (entry[_NAME] for entry in own["arrays"])
    parts = {name: whole[a:b] for name, (a, b) in zip(names, itertools.pairwise(places), strict=True)}
    name = next(name for name in parts if name.endswith(".lows.words"))

    def built(**changed: bytes | None) -> bytes:
        new = {n: changed.get(n.rpartition(".")[2], c) if n.startswith(name) else c for n, c in parts.items()}
        kept = [
            [n, dtype, _shape(dtype, shape, len(content)), *rest]
            for n, dtype, shape, *rest in own["arrays"]
            if (content := new[n]) is not None
        ]
        return _forged({**own, "arrays": kept}, b"".join(c for c in new.values() if c is not None))

    checksums = parts[f"{name}.checksums"]
    other = bytes([parts[name][0] ^ 1]) + parts[name][1:]
    yield "container.header", "words without a checksum", built(checksums=None)
    yield "container.blocks", "a checksum more", built(checksums=checksums * 2)
    yield "container.blocks", "another checksum", built(checksums=bytes(16))
    yield "container.blocks", "another block", built(words=other)


def _shape(dtype: str, shape: list[int], size: int) -> list[int]:
    """The shape of an array of this many bytes; only its first length changes."""
    return [size // (_SIZES[dtype] * math.prod(shape[1:])), *shape[1:]]


def _forged(own: dict[str, Any], payload: bytes) -> bytes:
    """A file with this header, whatever it says."""
    return _file(zlib.compress(_canonical_text(own).encode(), 9), payload)


def _canonical_text(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


def _file(packed: bytes, payload: bytes) -> bytes:
    """A file whose header has these bytes behind their checksum."""
    packed += bytes(-(len(packed) + 24) % 64)
    return (len(packed) + 16).to_bytes(8, "little") + mmh3.hash_bytes(packed) + packed + payload


# -- manifests -----------------------------------------------------------------------------------------


def forged_manifests(view: SealedView) -> Forged:
    """Snapshots of a base and two deltas whose manifest is wrong."""
    contents = view.contents()
    (name,) = (n for n in contents if n.endswith(".json"))
    whole = contents[name]
    for rule, label, content in _manifests(whole):
        yield f"{rule} {label}".replace(" ", "-"), rule, {**contents, name: content}
    renamed = {n: c for n, c in contents.items() if n != name}
    later = f"snapshots/{snapshot_name(view.layers[-1].version + 1)}.json"
    yield "manifest.name-another-version", "manifest.name", {**renamed, later: whole}
    base = f"snapshots/{snapshot_name(view.layers[0].version)}.base.sketch"
    lacking = {n: c for n, c in contents.items() if n != base}
    yield "manifest.files-a-file-is-missing", "manifest.files", lacking
    yield "manifest.files-a-longer-file", "manifest.files", {**contents, base: contents[base] + b"\0"}
    start, own = header_of(contents[base])
    own["description"]["created_by"] = CREATED_BY[::-1]
    other = _forged(own, contents[base][start:])
    yield "manifest.files-another-file", "manifest.files", {**contents, base: other}


def _manifests(whole: bytes) -> Iterator[tuple[str, str, bytes]]:
    def told(change: Callable[[dict[str, Any]], object]) -> bytes:
        given = json.loads(whole)
        given.pop("checksum")
        change(given)
        return _canonical({**given, "checksum": checksum_of(_canonical(given))})

    yield "manifest.damaged", "empty", b""
    yield "manifest.damaged", "cut off", whole[:-1]
    yield "manifest.damaged", "another byte", whole.replace(b'"number":1', b'"number":2')
    yield "manifest.damaged", "a space more", whole.replace(b",", b", ", 1)
    yield "manifest.damaged", "too long", told(lambda own: own.update(created_by="x" * MAX_MANIFEST_BYTES))
    yield "manifest.damaged", "without files", told(lambda own: own.pop("files"))
    yield "manifest.damaged", "a number with a point", told(lambda own: own.update(number=1.0))
    yield "manifest.damaged", "a negative number", told(lambda own: own.update(number=-1))
    yield "manifest.damaged", "a path", told(lambda own: own["files"]["base"].update(name="../base"))
    yield (
        "manifest.damaged",
        "a checksum that is none",
        told(lambda own: own["files"]["base"].update(header_checksum="x")),
    )
    yield (
        "manifest.damaged",
        "chunks that do not fit",
        told(lambda own: own["files"]["base"].update(chunks={"size_bytes": 1, "checksums": []})),
    )
    yield "manifest.version", "version 2", told(lambda own: own.update(format_version=2))
    yield "manifest.order", "a base behind its deltas", told(lambda own: own.update(base_version=6))
    yield "manifest.order", "deltas that descend", told(lambda own: own["deltas"].reverse())
    yield "manifest.name", "another number", told(lambda own: own.update(number=7))
    yield (
        "manifest.name",
        "files of another name",
        told(lambda own: own["deltas"][-1]["files"].update(own["files"])),
    )
    yield "manifest.files", "another version inside", told(lambda own: own.update(base_version=2))


def _canonical(content: dict[str, Any]) -> bytes:
    return _canonical_text(content).encode() + b"\n"
