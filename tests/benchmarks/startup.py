"""What registering `type: sketch` costs an interpreter that never touches Feast.

Two fresh virtual environments without any other package; one has this package's start-up file.
"""

import subprocess
import sys
from pathlib import Path

from measure import medians, short, table
from stores import temporary_folder

import feast_sketch_store

PACKAGE = Path(feast_sketch_store.__file__).parent


def make_environment(folder: Path, with_package: bool) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    if with_package:
        (site / "feast_sketch_store").symlink_to(PACKAGE)
        (site / "feast_sketch_store.pth").write_bytes((PACKAGE / "feast_sketch_store.pth").read_bytes())
    return folder / "bin" / "python"


def run(quick: bool) -> None:
    with temporary_folder() as folder:
        pythons = {
            "without": make_environment(folder / "without", with_package=False),
            "with": make_environment(folder / "with", with_package=True),
        }
        times = medians(
            {n: lambda p=p: subprocess.run([p, "-c", "pass"], check=True) for n, p in pythons.items()},
            10 if quick else 200,
        )
        listing = subprocess.run(
            [pythons["with"], "-X", "importtime", "-c", "pass"], capture_output=True, text=True, check=True
        ).stderr
    ours = [line.rpartition("|")[2].strip() for line in listing.splitlines() if "feast_sketch" in line]
    table(
        ["`python -c pass`", "ms", "times without"],
        [(n, short(t * 1e3), f"{t / times['without']:.3f}") for n, t in times.items()],
    )
    print(
        f"\nDifference {(times['with'] - times['without']) * 1e3:.2f} ms; modules imported: {', '.join(ours)}"
    )
