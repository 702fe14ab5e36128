"""Write customers' products to a sketch and read them back.

    python feature_repo_example/run.py

Applies the repository in this folder, materializes it, and reads it back in another process: one customer in
full, then all customers, compared with the exact rows. Exits with 1 if anything that was written is lost.
"""

import subprocess
import sys
import sysconfig
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent
PERIOD = ("2010-01-01T00:00:00", "2011-12-31T00:00:00")


def main() -> int:
    """Apply and materialize with the `feast` command, then read in another process: the exit status."""
    started = time.monotonic()
    feast = Path(sysconfig.get_path("scripts")) / "feast"
    for command in (["apply"], ["materialize", *PERIOD]):
        print(f"\n$ feast {' '.join(command)}", flush=True)
        subprocess.run([feast, *command], cwd=REPO, check=True)
    print("\nAnother process reads:", flush=True)
    status = subprocess.run([sys.executable, REPO / "compare.py"], check=False).returncode
    print(f"\nDone in {time.monotonic() - started:.0f} seconds.")
    return status


if __name__ == "__main__":
    sys.exit(main())
