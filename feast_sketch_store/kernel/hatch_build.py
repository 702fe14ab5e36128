"""Builds the compiled kernel while the package is installed; without a C compiler it is left out."""

import os
import sys
import sysconfig
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path(__file__).parent
_TARGET = "feast_sketch_store.kernel._compiled"


class KernelBuildHook(BuildHookInterface[Any]):
    """Compiles the C files of this folder into an extension module for Python 3.11 and later."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in place, and add the module to the wheel."""
        try:
            built = _compile(Path(self.root))
        except Exception as error:  # a missing compiler may raise anything
            if os.environ.get("FEAST_SKETCH_STORE_KERNEL") == "compiled":
                raise
            warnings.warn(f"no compiled kernel, reads will use NumPy: {error}", stacklevel=1)
            return
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["artifacts"].append(str(built))


def _compile(root: Path) -> Path:
    # Imported here because hatchling also loads this file where setuptools is missing.
    from setuptools import Distribution, Extension

    sources = sorted(str(path.relative_to(root)) for path in _FOLDER.glob("*.c"))
    options = [] if sys.platform == "win32" else ["-O3", "-fvisibility=hidden"]
    extension = Extension(_TARGET, sources, extra_compile_args=options, py_limited_api=True)
    command = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
    command.inplace = True
    with TemporaryDirectory() as scratch:
        command.build_temp = command.build_lib = scratch
        command.ensure_finalized()
        command.run()
    return Path(command.get_ext_fullpath(_TARGET)).relative_to(root)
