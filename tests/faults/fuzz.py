"""Feed damaged and forged files to the readers.

    python tests/faults/fuzz.py --seconds 600

Three inputs of four are snapshots, decoded and read as a view does it: small valid ones with a few bytes
changed; or with the description, the arrays and what the header says of them changed, and every checksum
right again. Such a file is refused with the errors that the readers document, or it is safe to read. Every
fourth input is a whole store with one thing changed: a segment, a commit or a data file of its row log, or a
file of its snapshot. It reads as before or is refused with an error that names a file. None takes more than
ten seconds, memory that its size does not explain, or rows from outside its folder.

A row log that reads as other rows cannot be distinguished from an honest one. It is counted, but is not a
failure.

The seed and a number identify an input: ``--only 1234`` runs one and shows what it raises. The readers run in
child processes, so an input that makes one crash or hang is reported like any other.
"""

import argparse
import ast
import copy
import itertools
import json
import logging
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import kill
import mmh3
import numpy as np
from feast.protos.feast.types.Value_pb2 import FloatList, Int64List, StringSet, Value
from kill import NUM_ENTITIES, PACKAGE, Reference, Write, matches
from numpy.typing import NDArray
from workload import NEVER, SETTINGS, START, in_child

from feast_sketch_store.errors import DamagedFileError, SketchStoreError
from feast_sketch_store.layers import Cut, FeatureBudget, Goal, SketchLayer
from feast_sketch_store.rows.codecs import EXACT, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, encode, newest_rows, to_arrow
from feast_sketch_store.snapshot import decode
from feast_sketch_store.snapshot import encode as encode_snapshot
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.layers import build_layer
from tests.oracle.messages import feast_values

INPUTS_PER_CHILD = 500
SECONDS_PER_INPUT = 10
ADDRESS_SPACE = 4 << 30  # beside what a child begins with
OUTSIDE = Write(49, tuple(range(NUM_ENTITIES)), 10**6, deletes=False, vacuums=False)
SALT = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
DTYPES = {"U64": np.uint64, "I64": np.int64, "I32": np.int32, "U8": np.uint8}
DTYPE_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}

JUNK = [
    *(None, True, False, 0, 1, -1, 2, 63, 64, 65, 255, 256, 1000),
    *(2**31, 2**32 - 1, 2**53, 2**60, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30),
    *(0.0, 0.5, 1.0, -1.5, 1e-320, 1e308, math.inf, math.nan),
    *("", "x", "0", "-1", "f" * 16, "f" * 17, "viewed", "string_val", "\0", "\ud800"),
    *([], [0], [[]], ["viewed"], {}, {"a": 1}),
]

Files = dict[str, bytes | None]  # None is a file that is gone


# -- valid inputs ----------------------------------------------------------------------------------


@cache
def snapshots() -> list[bytes]:
    """Small snapshots of all kinds of features, and of no rows."""
    membership = [FeatureCodec("viewed", "string_set_val")]
    categorical = [FeatureCodec("country", "string_val")]
    several = [
        *(*membership, *categorical),
        *(FeatureCodec("sizes", "int64_list_val"), FeatureCodec("scores", "float_list_val")),
        *(FeatureCodec("member", "bool_val"), FeatureCodec("weight", "double_val")),
        *(FeatureCodec("seen", "unix_timestamp_val"), FeatureCodec("photo", "bytes_val")),
    ]
    exact = [*membership, *(FeatureCodec(c.feature, c.value_field, EXACT) for c in several[1:])]
    weighted, sets = Goal("noise_ratio", 1.0, "weighted_bloom"), Goal("error_rate", 1e-2, "sets")
    clustered = Goal("noise_ratio", 1.0, "learned_bloom", 2)
    return [
        snapshot_of(codecs, users, *targets)
        for codecs, users, *targets in (
            *((membership, 8), (categorical, 8), (several, 8), (several, 70), (several, 0)),
            *((exact, 8), (exact, 70), (several, 70, weighted), (membership, 0, sets)),
            *((several[:4], 8, sets), (several[:4], 70, sets, weighted)),
            (several[:4], 70, clustered),
        )
    ]


def snapshot_of(codecs: list[FeatureCodec], users: int, *targets: Goal) -> bytes:
    """A snapshot of users; collections are kept for the targets in turn, and one of them is cut."""

    def value(field: str, user: int) -> Value:
        content = {
            "string_set_val": StringSet(val=[f"item {user % 5}", "ümlaut", ""][: user % 4]),
            "string_val": f"country {user % 3}",
            "int64_list_val": Int64List(val=[user, -user]),
            "float_list_val": FloatList(val=[user / 3, math.nan]),
            "bool_val": user % 2 == 0,
            "double_val": user / 7,
            "unix_timestamp_val": user * 10**6,
            "bytes_val": bytes((user,)) * (user % 3),
        }
        return Value(**{field: content[field]}) if user % 6 else Value()

    rows = [
        (
            user_key(user),
            {c.feature: value(c.value_field, user) for c in codecs if (user + len(c.feature)) % 7},
            START + timedelta(hours=user),
            None,
        )
        for user in range(max(1, users))
    ]
    encoded = encode(*newest_rows(to_arrow(rows, codecs).slice(0, users)), codecs)
    collections = [c.feature for c in codecs if c.is_collection and not c.is_exact]
    budget = FeatureBudget(
        1e-3,
        dict.fromkeys((c.feature for c in codecs), 1e-2)
        | (dict(zip(collections, itertools.cycle(targets), strict=False)) if targets else {}),
        cuts={name: Cut(top=4) for name in collections[1:2] if targets},
    )
    with mock.patch("feast_sketch_store.layers.build.new_salt", return_value=SALT):
        description, arrays = build_layer(encoded, budget).to_snapshot()
    return b"".join(encode_snapshot({**description, "created_by": "fuzz", "view": "v"}, arrays))


@dataclass(frozen=True)
class Store:
    """A view's files and what they hold."""

    name: str
    files: dict[str, bytes]
    reference: Reference


def build_stores(folder: Path) -> list[Store]:
    """Stores of fresh rows, of absorbed, sealed and late ones, and one that has only a compacted table.

    The last one stands for files that no store may read.
    """
    late = Write(8, (0, 1, 2, 3, 4, 5), -100, deletes=False, vacuums=False)
    early = [kill.plan_write(number) for number in range(4)]
    delete = kill.plan_write(4)
    # The structure, the writes, and before which of them the rows so far go into the table, into a snapshot,
    # and into a delta over it.
    plans = {
        "fresh": (0, [*early, delete, kill.plan_write(5)], None),
        "unsealed": (0, [*early, delete, kill.plan_write(5)], 3),
        "sealed": (0, [*early, late, kill.plan_write(5)], None, 4),
        "delta over sets": (1, [*early, delete, kill.plan_write(5), late], None, 2, 5),
        "compacted": (0, [*early, delete, kill.plan_write(5), kill.plan_write(7)], None, 5),
        "outside": (0, [OUTSIDE, OUTSIDE], 1),
    }

    def build(pipe: int) -> None:
        with (
            mock.patch("feast_sketch_store.layers.build.new_salt", return_value=SALT),
            mock.patch("secrets.token_hex", return_value="0" * 8),
            mock.patch("secrets.token_bytes", side_effect=bytes),
            mock.patch("time.time_ns", return_value=1_700_000_000_000_000_000),
            mock.patch("uuid.uuid4", side_effect=file_names()),
        ):
            for name, (structure, writes, absorbed_before, *sealed_before) in plans.items():
                view = View(LocalStorage(folder / name), SETTINGS[structure], NEVER, 0.0)
                for number, write in enumerate(writes):
                    if number == absorbed_before:
                        view.absorb()
                    if number in sealed_before:
                        view.seal(as_delta=number != sealed_before[0])
                    kill.apply_write(view, write)
        shutil.rmtree(folder / "compacted" / "snapshots")
        os.write(pipe, b"built")

    # In a child, because threads would not survive the forks that follow.
    pid, lines = in_child(build)
    if list(lines) != ["built"]:
        raise RuntimeError("the stores could not be built")
    os.waitpid(pid, 0)
    stores = []
    for name, (_, writes, *_) in plans.items():
        reference = Reference()
        for write in writes:
            reference = reference.with_write(write)
        paths = sorted(p for p in (folder / name).rglob("*") if p.is_file() and not is_left_out(p))
        files = {str(path.relative_to(folder / name)): path.read_bytes() for path in paths}
        stores.append(Store(name, files, reference))
    return stores


def file_names() -> Iterator[str]:
    """Names that are the same in every run."""
    return (f"00000000-0000-4000-8000-{number:012}" for number in itertools.count())


def is_left_out(path: Path) -> bool:
    """Whether a file is a lock, or a checkpoint: those are for other Delta clients, and made by chance."""
    return path.name.endswith("lock") or "checkpoint" in path.name


# -- mutations -------------------------------------------------------------------------------------


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Change a few bytes, or cut, insert, repeat or overwrite some."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        offset = rng.randrange(len(changed) + 1)
        end = offset + rng.choice((1, 2, 8, 64, 500))
        match rng.randrange(9):
            case 0 | 1 | 2 if offset < len(changed):
                changed[offset] ^= 1 << rng.randrange(8)
            case 3 if offset < len(changed):
                changed[offset] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 4:
                del changed[offset:]
            case 5:
                del changed[offset:end]
            case 6:
                changed[offset:offset] = rng.randbytes(end - offset)
            case 7:
                source = rng.randrange(len(changed) + 1)
                changed[offset:end] = changed[source : source + end - offset]
            case 8:
                changed[offset:end] = bytes(len(changed[offset:end]))
    return bytes(changed)


def keys_in(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of a JSON content, as what holds it and the key there."""
    if isinstance(content, dict | list):
        for key, part in content.items() if isinstance(content, dict) else enumerate(content):
            yield content, key
            yield from keys_in(part)


def mutate_json(content: Any, rng: random.Random) -> None:
    """Change one part of a JSON content."""
    keys = list(keys_in(content))
    if not keys:
        return
    holder, key = rng.choice(keys)
    old = holder[key]
    match rng.randrange(8):
        case 0 | 1 | 2:
            holder[key] = copy.deepcopy(rng.choice(JUNK))
        case 3 | 4 if type(old) in (int, float):
            holder[key] = rng.choice((old + 1, -old, 2 * old, old + 2**60, float(old), str(old)))
        case 5:
            del holder[key]
        case 6 if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(old))
        case _:
            other, where = rng.choice(keys)
            holder[key] = copy.deepcopy(other[where])


def mutate_arrays(arrays: dict[str, NDArray[Any]], rng: random.Random) -> None:
    """Change the content, length, shape, type or name of an array."""
    name = rng.choice(list(arrays))
    array = arrays[name].copy()
    limits = np.iinfo(array.dtype)
    extremes = [limits.min, limits.max, 0, 1, limits.max // 2, rng.randrange(min(limits.max, 1000))]
    match rng.randrange(13):
        case 0 | 1 | 2 if array.size:
            for _ in range(rng.choice((1, 1, 3))):
                array.reshape(-1)[rng.randrange(array.size)] = rng.choice(extremes)
        case 3:
            array[...] = rng.choice(extremes)
        case 4:
            array = np.frombuffer(rng.randbytes(array.nbytes), array.dtype).reshape(array.shape)
        case 5:
            array = array[: rng.randrange(len(array) + 1)]
        case 6 if len(array):
            array = np.concatenate((array, array[-1:].repeat(rng.choice((1, 7, 64, 1000)), axis=0)))
        case 7:
            array = array.astype(rng.choice(list(DTYPES.values())))
        case 8:
            array = rng.choice((array.reshape(-1), array[None], array[..., None], array.T))
        case 9 if len(array) > 1:
            array = array[::-1]
        case 10:
            del arrays[name]
            name = rng.choice((name, name + "x", "vocabulary.0.values", "vocabulary.0.offsets", ""))
        case 11:
            other = rng.choice(list(arrays))
            arrays[name], name, array = arrays[other], other, array
    arrays[name] = np.ascontiguousarray(array)


def forge(content: bytes, rng: random.Random) -> bytes:
    """A snapshot with changed parts and right checksums."""
    description, arrays = decode(np.frombuffer(content, np.uint8), "a valid snapshot")
    description, arrays = copy.deepcopy(description), dict(arrays)
    for _ in range(rng.choice((1, 1, 2, 4))):
        match rng.randrange(5):
            case 0 | 1:
                mutate_json(description, rng)
            case 2 | 3:
                mutate_arrays(arrays, rng)
    entries = []
    for name, array in arrays.items():
        has_blocks = f"{name}.checksums" in arrays or name.removesuffix(".checksums") in {*arrays} - {name}
        checksum = [] if has_blocks else [mmh3.hash_bytes(array.tobytes())[:8].hex()]
        entries.append([name, DTYPE_NAMES[array.dtype], list(array.shape), *checksum])
    own = {"format_version": 1, "description": description, "arrays": entries}
    if rng.randrange(5) == 0:
        mutate_json({"entries": entries} if rng.randrange(2) else own, rng)
    return forged_header(own) + b"".join(array.tobytes() for array in arrays.values())


def forged_header(own: dict[str, Any]) -> bytes:
    """The header of a snapshot as it must be, whatever it says."""
    packed = zlib.compress(json.dumps(own, separators=(",", ":")).encode())
    packed += bytes(-(len(packed) + 24) % 64)
    return (len(packed) + 16).to_bytes(8, "little") + mmh3.hash_bytes(packed) + packed


def mutate_commit(content: bytes, paths: list[str], rng: random.Random) -> tuple[str, bytes]:
    """Change a commit of the row log as text, as lines, as JSON, or the paths in it."""
    lines = content.splitlines(keepends=True)
    line = rng.randrange(len(lines))
    kind = rng.choice(("bytes", "lines", "json", "json", "path"))
    if kind == "bytes":
        return kind, mutate_bytes(content, rng)
    if kind == "lines":
        match rng.randrange(4):
            case 0:
                del lines[line]
            case 1:
                del lines[line:]
            case 2:
                lines.insert(rng.randrange(len(lines) + 1), lines[line])
            case 3:
                rng.shuffle(lines)
        return kind, b"".join(lines)
    actions = [json.loads(text) for text in lines]
    if kind == "json":
        mutate_json(actions, rng)
    else:
        path = rng.choice(paths)
        for action in actions:
            for change in ("add", "remove"):
                if change in action:
                    action[change]["path"] = path
    return kind, b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def mutate_segment(content: bytes, rng: random.Random) -> bytes:
    """Change bytes of a segment of fresh rows, but cut none off: that is what a killed writer leaves."""
    while len(changed := mutate_bytes(content, rng)) < len(content) or content.startswith(changed):
        pass
    return changed


def mutate_store(store: Store, outside: Path, rng: random.Random) -> tuple[str, Files, bool]:
    """Change one file: the kind of change, the files as they are now, and whether checksums were forged."""
    names = list(store.files)
    manifests = [name for name in names if name.startswith("snapshots/") and name.endswith(".json")]
    commits = [name for name in names if name.endswith(".json") and name not in manifests]
    data = [name for name in names if name.endswith(".parquet")]
    segments = [name for name in names if name.startswith("fresh/")]
    sealed = [name for name in names if name.endswith(".sketch")] + manifests
    kinds = {"segment": segments, "commit": commits, "data": data, "sealed": sealed}
    kind = rng.choice([kind for kind in ("segment", "commit", "data", "sealed") if kinds[kind]])
    if kind == "segment":
        name = rng.choice(segments)
        if rng.randrange(10) == 0:
            return "segment gone", {name: None}, False
        return "segment bytes", {name: mutate_segment(store.files[name], rng)}, False
    if kind == "sealed":
        name = rng.choice(sealed)
        if ".order." in name and rng.randrange(2):
            return "forged order file", {name: forge(store.files[name], rng)}, True
        return "snapshot bytes", {name: mutate_bytes(store.files[name], rng)}, False
    if kind == "data":
        name, other = rng.choice(data), rng.choice(data)
        match rng.randrange(10):
            case 0:
                return "data file gone", {name: None}, False
            case 1:
                changed = {name: store.files[other], other: store.files[name]}
                return "data files swapped", changed, False
            case _:
                return "data bytes", {name: mutate_bytes(store.files[name], rng)}, False
    name, other = rng.choice(commits), rng.choice(commits)
    match rng.randrange(20):
        case 0 if name != commits[-1]:  # without the last one it is an older state of the store
            return "commit gone", {name: None}, False
        case 1:
            return "commits swapped", {name: store.files[other], other: store.files[name]}, False
    paths = [
        *(f"../../{outside.name}", str(outside), f"..%2F..%2F{outside.name}", f"file://{outside}"),
        *(str(outside).replace("/", "%2F"), f"../rows/../../{outside.name}"),
        *(Path(each).name for each in data),
        *("", ".", "..", "\0", "%00", "%ff", "x" * 5000, "_delta_log/" + Path(name).name),
    ]
    kind, content = mutate_commit(store.files[name], paths, rng)
    return f"commit {kind}", {name: content}, False


# -- readers ---------------------------------------------------------------------------------------


@cache
def hashes() -> NDArray[np.uint64]:
    """Entities that are in the snapshots and others: uint64[32, 2]."""
    return user_hashes(range(-8, 24))


def read_snapshot(content: bytes) -> str:
    """Open and read a snapshot as a view does: how far it came."""
    mapped = np.frombuffer(content, np.uint8)
    try:
        description, arrays = decode(mapped, "input")
    except DamagedFileError:
        return "snapshots refused by their format"
    try:
        layer = SketchLayer.from_snapshot(description, arrays)
    except (ValueError, KeyError, TypeError, IndexError):
        return "snapshots refused by their layer"
    for expire_before in (NO_TIMESTAMP, 0, 2**62):
        for features in (list(layer.codecs), list(layer.codecs)[:1]):
            try:
                answers = layer.read(hashes(), features, expire_before).features
            except ValueError:  # which the view reports as a damaged file
                return "snapshots refused when they are read"
            for answer in answers.values():
                feast_values(answer)
    assert all(layer.features[name].structure and layer.size_bytes_of(name) >= 0 for name in layer.codecs)
    assert min(layer.num_facts, layer.fact_bits) >= 0
    assert layer.ideal_bits >= 0
    return "snapshots read"


def read_changed(store: Store, folder: Path, kind: str, files: Files, forged: bool) -> str:
    """Read a store whose files have changed, and put them back: what came of it."""
    try:
        for name, content in files.items():
            if content is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(content)
        error, rows = "", {}
        try:
            rows = kill.read_view(kill.ROWS.open(LocalStorage(folder)))
        except SketchStoreError as refusal:
            error = str(refusal)
    finally:
        for name in files:
            (folder / name).write_bytes(store.files[name])
    if error:
        assert error.startswith("/"), f"no file is named: {error}"
        return "stores refused"
    assert all(number != OUTSIDE.number for number, _ in rows.values()), "rows from outside the folder"
    if forged or matches(rows, store.reference):
        return "stores read"
    return f"stores read with other rows, {kind}"


def run_input(seed: int, number: int, stores: list[Store], folder: Path) -> tuple[str, int]:
    """Make an input and read it: what came of it, and its size."""
    rng = random.Random(f"{seed} {number}")
    if number % 4 == 3:
        store = rng.choice(stores[:-1])
        kind, files, forged = mutate_store(store, folder / "outside.parquet", rng)
        size = sum(map(len, store.files.values()))
        return read_changed(store, folder / store.name, kind, files, forged), size
    content = rng.choice(snapshots())
    content = forge(content, rng) if rng.randrange(5) else mutate_bytes(content, rng)
    return read_snapshot(content), len(content)


def peak_bytes() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass
class Outcome:
    """What came of some inputs."""

    first: int
    is_failure: bool
    detail: str
    times: int = 0


def run_inputs(seed: int, numbers: range, stores: list[Store], folder: Path, pipe: int) -> None:
    """Report the number of each input, run it, and report ``(number, outcome, is_failure, detail)``."""
    logging.disable()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ADDRESS_SPACE,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tracemalloc.start()
    for store in stores[:-1]:
        came = read_changed(store, folder / store.name, "nothing", {}, False)
        if came != "stores read":
            report = (numbers[0], f"an unchanged store: {came}", True, store.name)
            os.write(pipe, f"{report!r}\n".encode())
    for number in numbers:
        signal.alarm(SECONDS_PER_INPUT)
        os.write(pipe, f"{number!r}\n".encode())
        tracemalloc.reset_peak()
        peak, traced = peak_bytes(), tracemalloc.get_traced_memory()[0]
        failed, detail = True, ""
        try:
            outcome, size = run_input(seed, number, stores, folder)
            grown = max(peak_bytes() - peak, tracemalloc.get_traced_memory()[1] - traced)
            failed = grown > (64 << 20) + 100 * size
            if failed:
                outcome, detail = "too much memory", f"{grown} bytes for an input of {size}"
        except AssertionError as error:
            outcome, _, detail = str(error).partition(": ")
        except BaseException as error:  # whatever it is, the parent counts it
            frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
            where = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames[-3:]))
            outcome, detail = f"{type(error).__name__} at {where}", str(error)
        os.write(pipe, f"{(number, outcome, failed, detail[:500])!r}\n".encode())


def campaign(folder: Path, seed: int, seconds: float, inputs: int | None) -> dict[str, Outcome]:
    """Run so many inputs, or as long."""
    snapshots()
    stores = build_stores(folder / "built")
    outcomes: dict[str, Outcome] = {}
    deadline = time.monotonic() + seconds
    number = 0
    while number < inputs if inputs is not None else time.monotonic() < deadline:
        end = number + INPUTS_PER_CHILD if inputs is None else min(inputs, number + INPUTS_PER_CHILD)
        numbers = range(number, end)
        lay_out(stores, folder)
        pid, lines = in_child(lambda pipe, todo=numbers: run_inputs(seed, todo, stores, folder, pipe))
        done = []
        for line in lines:
            report = ast.literal_eval(line)
            if isinstance(report, int):
                number = report
            else:
                done.append(report)
        _, status = os.waitpid(pid, 0)
        if status:
            done.append((number, f"the process ended with status {status}", True, ""))
        for first, outcome, failed, detail in done:
            outcomes.setdefault(outcome, Outcome(first, failed, detail)).times += 1
        number += 1
    return outcomes


def lay_out(stores: list[Store], folder: Path) -> None:
    """Write the files of the stores, and a data file beside them that none may read."""
    for store in stores:
        shutil.rmtree(folder / store.name, ignore_errors=True)
        for name, content in store.files.items():
            (folder / store.name / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / store.name / name).write_bytes(content)
    (rows,) = [content for name, content in stores[-1].files.items() if name.endswith(".parquet")]
    (folder / "outside.parquet").write_bytes(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--inputs", type=int, help="so many, however long they take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one input, to see what it raises")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        if options.only is not None:
            stores = build_stores(folder / "built")
            lay_out(stores, folder)
            print(*run_input(options.seed, options.only, stores, folder))
            return 0
        outcomes = campaign(folder, options.seed, options.seconds, options.inputs)
    finally:
        shutil.rmtree(folder)
    total = failures = 0
    for what, outcome in sorted(outcomes.items()):
        total += outcome.times
        failures += outcome.times if outcome.is_failure else 0
        kind = "FAILURE " if outcome.is_failure else ""
        print(f"{outcome.times:8} {kind}{what}, first by input {outcome.first} {outcome.detail}".rstrip())
    print(f"{total} inputs of seed {options.seed}, {failures} failures")
    return min(1, failures)


if __name__ == "__main__":
    sys.exit(main())
