"""Progress of a plan, as one line of a terminal."""

import time
from typing import TextIO


class Progress:
    """Shows what a plan is doing. Shows nothing if the stream is not a terminal.

    Parameters
    ----------
    stream : to write to, usually the standard error.
    """

    def __init__(self, stream: TextIO):
        self._stream, self._is_shown = stream, stream.isatty()
        self._began = time.monotonic()

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show a step that begins.

        Parameters
        ----------
        text : the name of the step.
        done, total : steps of this kind that are done, and their total; 0 for a single step.
        """
        if not self._is_shown:
            return
        if not done:
            self._began = time.monotonic()
        self._write(text + (counted(done, total, time.monotonic() - self._began) if total else ""))

    def end(self) -> None:
        """Clear the line."""
        if self._is_shown:
            self._write("")

    def _write(self, text: str) -> None:
        # Carriage return, then erase to the end of the line.
        self._stream.write(f"\r\x1b[K{text}")
        self._stream.flush()


def counted(done: int, total: int, elapsed_seconds: float) -> str:
    """A text such as ``: 12 of 29, 40 s left``; the time left is known once a step is done."""
    text = f": {done + 1} of {total}"
    if not done:
        return text
    left = elapsed_seconds / done * (total - done)
    return f"{text}, {left:.0f} s left" if left < 90 else f"{text}, {left / 60:.0f} min left"
