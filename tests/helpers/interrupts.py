"""Interrupts of a call, one at each moment at which CPython may raise one."""

import dis
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# CPython looks for signals when a function begins, when a loop goes on, and after a call. So a statement
# `with` has no such moment between the acquisition of a lock and the block that releases it. In CPython 3.14
# it has one, which is a defect: nobody can release the lock then. That moment is left out here.
_LOOKS = {dis.opmap.get(name) for name in ("RESUME", "JUMP_BACKWARD", "CALL", "CALL_KW", "CALL_FUNCTION_EX")}
_FINDS_ENTER = dis.opmap.get("LOAD_SPECIAL", -1)  # before its call, since Python 3.14
_OTHER = -2


class _Interrupt:
    """A function for `sys.settrace` that raises at the n-th moment of some functions."""

    def __init__(self, names: tuple[str, ...], moment: int):
        self._names, self._moment, self.num_seen = names, moment, 0
        self._before: dict[FrameType, int] = {}  # what each frame has executed

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "call" and not frame.f_code.co_qualname.startswith(self._names):
            return None
        frame.f_trace_opcodes = True
        if event == "return":
            self._before.pop(frame, None)
        elif event == "opcode":
            before = self._before.get(frame)
            self.num_seen += before in _LOOKS
            self._before[frame] = _OTHER if before == _FINDS_ENTER else frame.f_code.co_code[frame.f_lasti]
            if self.num_seen == self._moment:
                self._moment = 0
                self._before.clear()  # holds frames, and with them what they have opened
                raise KeyboardInterrupt
        return self


def interrupted(call: Callable[[], Any], *names: str) -> Iterator[int]:
    """Call a function until it is not interrupted, each time one moment later in functions whose qualified
    names begin so.

    Yields the number of the moment after each call that was interrupted.
    """
    for moment in range(1, sys.maxsize):
        before = sys.gettrace()
        sys.settrace(_Interrupt(names, moment))
        is_interrupted = False
        try:
            call()
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            sys.settrace(before)
        if not is_interrupted:
            return
        yield moment
