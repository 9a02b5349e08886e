"""Location of a crash in native code, from the stack that Python's fault handler writes to the log."""

from __future__ import annotations

import re
import signal
from typing import Final

from jupyter_dlaas.failures.cell_map import CellMap
from jupyter_dlaas.wire.protocol import Where

__all__ = ["CRASHES", "crash_location"]

CRASHES: Final = {
    signal.SIGSEGV: "Segmentation fault",
    signal.SIGBUS: "Bus error",
    signal.SIGFPE: "Floating",
    signal.SIGILL: "Illegal instruction",
    signal.SIGABRT: "",  # the interpreter itself aborts with a message of its own
}
"""Signals of a crash, each with the start of the fault handler's message."""
_FATAL: Final = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)
_STACK: Final = re.compile(
    r"^Current thread 0x[0-9a-f]+.*\(most recent call first\):\n((?:  .*\n?)*)", re.IGNORECASE | re.MULTILINE
)
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in (.+)$', re.MULTILINE)


def crash_location(log: str, number: int, cells: CellMap, own_folder: str) -> Where | None:
    """Return the user's innermost line on the stack of the last crash by this signal; None if the log has none.

    A log may hold further crashes: worker processes write to it as well.
    """
    message = CRASHES[signal.Signals(number)]
    crashes = [found for found in _FATAL.finditer(log) if found[1].startswith(message)]
    stack = _STACK.search(log, crashes[-1].end()) if crashes else None
    if stack is None:
        return None
    script, folder = _shown(cells.script), _shown(f"{own_folder}/")
    for path, line, function in _FRAME.findall(stack[1]):
        if path == script:
            return cells.where(cells.script, int(line), function)
        if path.startswith(folder):
            return cells.where(f"{own_folder}/{path.removeprefix(folder)}", int(line), function)
    return None


def _shown(path: str) -> str:
    """Return a path as the fault handler writes it."""
    return path.encode("ascii", "backslashreplace").decode()
