"""Start-up: what registering ``type: sketch`` costs an interpreter that never touches Feast.

Two virtual environments with nothing in them, one with this package's wheel and so its start-up file. The
time is that of the whole process ``python -c pass``, whose noise is larger than the difference; hence many
interleaved runs.
"""

import os
import subprocess
import sys
from pathlib import Path

from measure import interleaved, number, print_set_up, print_table
from stores import temporary_folder

REPOSITORY = next(
    folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists()
)
WITHOUT, WITH = "without the package", "with the package"


def run(*, quick: bool) -> None:
    rounds = 10 if quick else 200
    with temporary_folder() as folder:
        pythons = {
            WITHOUT: _make_environment(folder / "without"),
            WITH: _make_environment(folder / "with"),
        }
        pip = [sys.executable, "-m", "pip", "--python", str(pythons[WITH]), "install"]
        subprocess.run([*pip, "--quiet", "--no-deps", str(REPOSITORY)], check=True)
        sides = {name: lambda _, python=python: _run(python) for name, python in pythons.items()}
        times = interleaved(sides, lambda _: None, rounds=rounds)
        modules = {name: _imported(python) for name, python in pythons.items()}
    print_set_up(f"`python -c pass` in empty virtual environments, {rounds} turns of each")
    print_table(
        ["environment", "ms", "modules imported"],
        [[name, number(times[name] * 1e3), str(len(modules[name]))] for name in pythons],
    )
    added = [name for name in modules[WITH] if name not in modules[WITHOUT]]
    print(
        f"Difference: {number((times[WITH] - times[WITHOUT]) * 1e3)} ms; modules added: {', '.join(added)}.\n"
    )


def _make_environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def _run(python: Path, *options: str) -> str:
    # Variables such as PYTHONPATH would let other packages in.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [python, *options, "-c", "pass"]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stderr


def _imported(python: Path) -> list[str]:
    lines = _run(python, "-X", "importtime").splitlines()
    return [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")][1:]
