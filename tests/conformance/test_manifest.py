"""Manifests: read and written byte for byte; a changed one is refused with `DamagedFileError`."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import mmh3
import numpy as np
import pytest

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.snapshot.files import SnapshotFolder
from feast_sketch_store.snapshot.manifest import MAX_MANIFEST_BYTES, LayerFiles, Manifest, PartFile
from feast_sketch_store.snapshot.order import load_order
from feast_sketch_store.snapshot.sealed import open_layers
from feast_sketch_store.storage.local import LocalStorage
from tests.helpers.cases import for_each

GOLDEN = Path(__file__).parent / "golden"
CONTENT = (GOLDEN / "v1.manifest.json").read_bytes()
CHUNKED = (GOLDEN / "v1.chunks.manifest.json").read_bytes()
DELTAS = (GOLDEN / "v1.deltas.manifest.json").read_bytes()
BOTH = pytest.mark.parametrize("content", [CONTENT, CHUNKED, DELTAS], ids=["files", "chunks", "deltas"])
NAME = "00000000000000000003-0001-5a17c0de"
HUGE = 1 << 60


def refused(content, match="some file"):
    with pytest.raises(DamagedFileError, match=match):
        Manifest.decode(content, "some file")


def forged(content=CONTENT, **changes):
    """A manifest with changed fields and the checksum that fits, computed without the package's help."""
    fields = {**json.loads(content), **changes}
    del fields["checksum"]
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    fields["checksum"] = mmh3.hash_bytes(f"{text}\n").hex()
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def files(**changes):
    base = {"name": f"{NAME}.base.sketch", "size_bytes": 10, "header_checksum": "0" * 32}
    return {"base": {**base, **changes}, "order": {**base, "name": f"{NAME}.order.sketch"}}


def test_the_file_is_the_one_of_the_readme():
    readme = (Path(__file__).parent / "README.md").read_text()
    assert f"{hashlib.sha256(CONTENT).hexdigest()}  v1.manifest.json" in readme
    assert f"{hashlib.sha256(DELTAS).hexdigest()}  v1.deltas.manifest.json" in readme
    delta = (GOLDEN / "v1.delta.sketch").read_bytes()
    assert f"{hashlib.sha256(delta).hexdigest()}  v1.delta.sketch" in readme
    assert f"{hashlib.sha256(CHUNKED).hexdigest()}  v1.chunks.manifest.json" in readme


def test_it_is_read_and_written_as_ever():
    manifest = Manifest.decode(CONTENT, "some file")
    base, order = GOLDEN / "v1.base.sketch", GOLDEN / "v1.order.sketch"
    files = {
        "base": PartFile(f"{NAME}.base.sketch", base.stat().st_size, header_checksum(base)),
        "order": PartFile(f"{NAME}.order.sketch", order.stat().st_size, header_checksum(order)),
    }
    assert manifest == Manifest(1, "make_golden", (LayerFiles(3, files),))
    assert manifest.encode() == CONTENT


def test_chunks_are_read_and_written_as_ever():
    manifest = Manifest.decode(CHUNKED, "some file")
    assert manifest.encode() == CHUNKED
    plain = Manifest.decode(CONTENT, "some file")
    for part, file in manifest.own.files.items():
        content = (GOLDEN / f"v1.{part}.sketch").read_bytes()
        parts = [content[first : first + 4096] for first in range(0, len(content), 4096)]
        assert file.chunks.chunk_bytes == 4096
        assert list(file.chunks.checksums) == [mmh3.hash_bytes(part) for part in parts]
        assert replace(file, chunks=None) == plain.own.files[part]


def test_deltas_are_read_and_written_as_ever():
    manifest = Manifest.decode(DELTAS, "some file")
    assert manifest.encode() == DELTAS
    plain = Manifest.decode(CONTENT, "some file")
    assert manifest.layers[:1] == plain.layers
    assert [layer.row_log_version for layer in manifest.layers] == [3, 5, 8]
    assert [file.name[18:25] for file in manifest.all_files] == 2 * ["03-0001"] + 2 * ["05-0001"] + 2 * [
        "08-0001"
    ]
    assert manifest.own == manifest.layers[2]


def test_a_delta_is_read_as_ever(tmp_path):
    """Over a base of the same rows, of which the delta has deleted one."""
    golden = {(3, "base"): "base", (3, "order"): "order", (5, "base"): "delta", (5, "order"): "order"}
    files = {}
    for (version, part), source in golden.items():
        path = GOLDEN / f"v1.{source}.sketch"
        name = f"{version:020d}-0001-5a17c0de.{part}.sketch"
        (tmp_path / name).write_bytes(path.read_bytes())
        files.setdefault(version, {})[part] = PartFile(name, path.stat().st_size, header_checksum(path))
    layers = tuple(LayerFiles(version, own) for version, own in files.items())
    content = Manifest(1, "a test", layers).encode()
    (tmp_path / f"{5:020d}-0001-5a17c0de.json").write_bytes(content)
    (snapshot,) = SnapshotFolder(LocalStorage(tmp_path)).list()
    order = load_order(snapshot)
    base, (delta,) = open_layers(snapshot, check_all=True)
    assert (delta.entity_hashes == order.entity_hashes).all()
    assert delta.deleted.tolist() == 5 * [False] + [True]
    assert base.num_entities == 6
    asked = np.concatenate([order.entity_hashes, order.entity_hashes + np.uint64(1)])
    decided, _ = delta.find(asked)
    assert decided.tolist() == [*range(6)]
    assert delta.read(asked, []).found.tolist() == [*range(5)]


def header_checksum(path):
    content = path.read_bytes()
    return mmh3.hash_bytes(content[: 8 + int.from_bytes(content[:8], "little")]).hex()


def test_it_publishes_its_files(tmp_path):
    for part in ("base", "order"):
        content = (GOLDEN / f"v1.{part}.sketch").read_bytes()
        (tmp_path / f"{NAME}.{part}.sketch").write_bytes(content)
    snapshots = SnapshotFolder(LocalStorage(tmp_path))
    assert snapshots.list() == []
    (tmp_path / f"{NAME}.json").write_bytes(CONTENT)
    (snapshot,) = snapshots.list()
    assert (snapshot.version, snapshot.number, snapshot.name) == (3, 1, NAME)
    assert open_layers(snapshot, check_all=True)[0].num_entities == len(load_order(snapshot)) == 6


@pytest.mark.slow
@BOTH
def test_every_changed_bit_is_found(content):
    for offset in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[offset] ^= 1 << bit
            refused(bytes(changed))


@BOTH
def test_every_truncation_and_extension_is_found(content):
    for length in range(len(content)):
        refused(content[:length])
    for extra in (b" ", b"\n", b"\0", content):
        refused(content + extra)


def test_what_means_the_same_and_is_written_otherwise_is_refused():
    fields = json.loads(CONTENT)
    refused(json.dumps(fields).encode(), "altered")
    refused(CONTENT.replace(b'"number":1', b'"number":1,"number":1'), "altered")
    refused(forged(more="x"), "altered")
    refused(forged(files={**files(), "third": files()["base"]}), "altered")


def test_a_forged_manifest_is_taken_if_nothing_is_wrong_with_it():
    assert Manifest.decode(forged(number=2**40), "some file").number == 2**40
    assert Manifest.decode(forged(files=files()), "some file").own.files["base"].size_bytes == 10


def test_a_newer_version_says_what_to_do():
    refused(forged(format_version=2), "has manifest version 2, this release reads 1; upgrade")


@for_each(
    "chunks",
    [
        *({"size_bytes": value} for value in (0, -1, "10", 4.0, True, None, 11, 3)),
        *({"checksums": value} for value in ([], ["0" * 32] * 4, ["0" * 31] * 3, [0] * 3, None, "0", {})),
        {"more": 1},
    ],
)
def test_chunks_that_cannot_be_are_refused(chunks):
    sound = {"size_bytes": 4, "checksums": ["0" * 32] * 3}
    assert Manifest.decode(forged(CHUNKED, files=files(chunks=sound)), "some file").own.files["base"].chunks
    refused(forged(CHUNKED, files=files(chunks={**sound, **chunks})))


@for_each(
    "changes",
    [
        *(
            {field: value}
            for field in ("row_log_version", "number")
            for value in (-1, "1", 1.0, True, None, [])
        ),
        *({"files": files(size_bytes=value)} for value in (-1, "1", 1.5, True, None)),
        *({"files": files(header_checksum=value)} for value in ("", "0" * 31, "G" * 32, 0, None)),
        *(
            {"files": files(name=value)}
            for value in ("", ".", "..", "../x", "/etc/passwd", "a/b", "a\0", 7, None)
        ),
        *({"files": value} for value in ({}, [], None, "x", {"base": files()["base"]}, files(more=1))),
        *({"created_by": value} for value in (None, 1, [])),
        *({"format_version": value} for value in (None, "1", 0, HUGE)),
    ],
)
def test_what_cannot_be_is_refused(changes):
    refused(forged(**changes))


@for_each(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"1", b'"x"', b"{}", b"\xff\xfe", b"[" * 60_000, b"PAR1" * 100),
        b" " * (MAX_MANIFEST_BYTES + 1),
        b'{"format_version":1,"number":' + b"9" * 10_000 + b"}",
    ],
)
def test_another_file_is_no_manifest(content):
    refused(content)
