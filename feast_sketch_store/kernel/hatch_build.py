"""Builds the kernel while the package is installed. A machine without a C compiler gets one from PyPI."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path(__file__).parent
_MODULE = "_compiled.abi3.so"
_FLAGS = ["-O3", "-g0", "-DNDEBUG", "-fwrapv", "-fPIC", "-fvisibility=hidden", "-Wall"]
_PROGRAM = "#include <Python.h>\n"

# Clang, with the headers of C libraries, in a wheel. Unless told otherwise it compiles for the processor of
# this machine alone, and checks for undefined operations.
_WHEEL = "ziglang"
_COMPILER_OF_WHEEL = [sys.executable, "-m", _WHEEL, "cc", "-mcpu=baseline", "-fno-sanitize=undefined"]


class KernelBuildHook(BuildHookInterface[Any]):
    """Compiles the C files of this folder into an extension module for Python 3.11 and later.

    ``CC``, ``CFLAGS`` and ``LDFLAGS`` in the environment have their usual meaning. To compile for another
    platform, name a cross compiler in ``CC``, and in ``_PYTHON_HOST_PLATFORM`` the platform of the wheel, as
    CPython does.
    """

    def dependencies(self) -> list[str]:
        """What a build needs besides hatchling."""
        return [] if _found_compiler() else [_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in place, and add the module to the wheel."""
        platform = _platform()
        _compile(_found_compiler() or _COMPILER_OF_WHEEL, platform)
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform.replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append(str((_FOLDER / _MODULE).relative_to(self.root)))


def _found_compiler() -> list[str] | None:
    """The command of this machine's C compiler; None if it has none that works."""
    if named := os.environ.get("CC"):
        return shlex.split(named)
    found = (path for name in ("cc", "gcc", "clang") if (path := shutil.which(name)) and _works(path))
    return [path] if (path := next(found, None)) else None


def _works(compiler: str) -> bool:
    """Whether it has the headers of the C library; on macOS it may be an offer to install a compiler."""
    with TemporaryDirectory() as scratch:
        source = Path(scratch, "program.c")
        source.write_text(_PROGRAM, "utf-8")
        command = [compiler, "-shared", "-fPIC", *_includes(), str(source), "-o", f"{scratch}/program.so"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _platform() -> str:
    """The platform of the wheel, as `sysconfig.get_platform` writes it."""
    if sys.platform != "darwin" or "_PYTHON_HOST_PLATFORM" in os.environ:
        return sysconfig.get_platform()
    # Python itself may be for two processors, and for a newer system than the kernel needs.
    machine = os.uname().machine
    return f"macosx-{'11.0' if machine == 'arm64' else '10.13'}-{machine}"


def _compile(compiler: list[str], platform: str) -> None:
    """Compile the sources, unless the module in this folder is what would come of them."""
    flags = [*_FLAGS, *_includes(), *shlex.split(os.environ.get("CFLAGS", ""))]
    to_link = shlex.split(os.environ.get("LDFLAGS", ""))
    if platform.startswith("macosx-"):
        to_link += ["-undefined", "dynamic_lookup"]  # Python has these symbols
    sources = sorted(_FOLDER.glob("*.c"))
    module = _FOLDER / _MODULE
    built_from = hashlib.sha256(repr([compiler, flags, to_link]).encode())
    for path in (*sources, *sorted(_FOLDER.glob("*.h"))):
        built_from.update(path.read_bytes())
    if module.exists() and built_from.hexdigest().encode() in module.read_bytes():
        return
    flags.append(f'-DBUILT_FROM="{built_from.hexdigest()}"')
    with TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        environment = {"ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch, **os.environ}
        objects = [f"{scratch}/{source.stem}.o" for source in sources]
        commands = [
            [*compiler, *flags, "-c", str(source), "-o", to]
            for source, to in zip(sources, objects, strict=True)
        ]
        for _ in pool.map(lambda command: _run(command, environment), commands):
            pass
        built = _FOLDER / f"{_MODULE}.{os.getpid()}"
        _run([*compiler, *flags, "-shared", *objects, *to_link, "-o", str(built)], environment)
        # Processes that have the old module mapped keep it.
        built.replace(module)


def _includes() -> list[str]:
    folders = {sysconfig.get_path(name) for name in ("include", "platinclude")}
    return [f"-I{folder}" for folder in sorted(folders)]


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        said, failed = done.stderr, done.returncode != 0
    except OSError as error:
        said, failed = str(error), True
    if failed:
        raise RuntimeError(
            f"{shlex.join(command)} failed, so the kernel of feast_sketch_store was not compiled:\n"
            f"{said.strip()}\n"
            "Install a C compiler and Python's headers (apt-get install gcc libc6-dev python3-dev), or unset "
            "CC; then install this package again"
        )
