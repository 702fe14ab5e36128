"""The build of the kernel: which C compiler it takes, and what it says if there is none."""

from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hook():
    return WheelBuilder(str(ROOT)).get_build_hooks("")["custom"]


def script(folder: Path, name: str, lines: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
    (folder / name).chmod(0o755)


def test_a_machine_without_a_working_compiler_takes_one_from_pypi(hook, tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    for name, lines in {"cc": "exit 1", "gcc": "exit 0"}.items():
        monkeypatch.setenv("PATH", str(tmp_path))
        assert hook.dependencies() == ["ziglang"]
        script(tmp_path, name, lines)
    assert hook.dependencies() == []


def test_a_build_that_fails_says_what_to_do(hook, tmp_path, monkeypatch):
    script(tmp_path, "compiler", 'echo "no room for $#" >&2; exit 1')
    for compiler, said in {
        f"{tmp_path}/compiler -v": "no room for",
        f"{tmp_path}/none": "No such file",
    }.items():
        monkeypatch.setenv("CC", compiler)
        assert hook.dependencies() == []
        with pytest.raises(RuntimeError, match=rf"(?s){compiler} .*{said}.*Install a C compiler"):
            hook.initialize("standard", {})


def test_a_wheel_is_for_the_platform_that_it_is_compiled_for(hook, monkeypatch):
    compiled = []
    monkeypatch.setitem(
        type(hook).initialize.__globals__, "_compile", lambda *reported: compiled.append(reported)
    )
    monkeypatch.setenv("CC", "cross -x")
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "macosx-11.0-arm64")
    data = {"artifacts": []}
    hook.initialize("standard", data)
    assert compiled == [(["cross", "-x"], "macosx-11.0-arm64")]
    assert (data["tag"], data["pure_python"]) == ("cp311-abi3-macosx_11_0_arm64", False)


def test_it_compiles_again_only_when_something_has_changed(hook, tmp_path, monkeypatch):
    names, runs = type(hook).initialize.__globals__, []

    def run(command, environment):
        runs.append(command)
        Path(command[command.index("-o") + 1]).write_text(" ".join(command))

    monkeypatch.setitem(names, "_FOLDER", tmp_path)
    monkeypatch.setitem(names, "_run", run)
    for change in ("a.c", "a.h", "CFLAGS"):
        if change == "CFLAGS":
            monkeypatch.setenv("CFLAGS", "-g")
        else:
            (tmp_path / change).write_text(f"/* {change} */")
        for number in (2, 0):  # one source, and a link; then nothing
            names["_compile"](["cc"], "linux-x86_64")
            assert len(runs) == number, change
            runs.clear()
