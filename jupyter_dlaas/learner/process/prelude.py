"""Serialised execution of the cells above the training cell: first in one learner, then in the others.

So a download or a cache is created once, without a race. The order is enforced by a lock on a file of the job, which
the operating system releases when the process that holds it dies for any reason.
"""

from __future__ import annotations
import __future__

import ast
import fcntl
import functools
import json
import operator
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, Final

from jupyter_dlaas.learner.control.context import Context
from jupyter_dlaas.learner.process.last_expression import with_last_values
from jupyter_dlaas.runtime.system.process import PRIVATE

__all__ = ["execute", "parts_of"]

LOCK: Final = "prelude.lock"
_PATIENCE_S: Final = 10.0
"""The time in seconds for which others wait for the first learner's turn: it may have died before."""
_SILENCE_S: Final = 5.0
_POLL_S: Final = 0.01
_ENTRY: Final = '\nif __name__ == "__main__":\n'
_FUTURES: Final = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_MEETINGS: Final = (
    ("torch.distributed", "init_process_group"),
    ("torch.distributed.distributed_c10d", "init_process_group"),
    ("jax.distributed", "initialize"),
)
"""Collectives that wait for all learners: a learner that calls one in the prelude ends its turn."""


def execute(script: Path, names: dict[str, Any], context: Context) -> None:
    """Run a program in a module's namespace. In a gang, the cells above the training cell run in turns."""
    source, path = script.read_bytes(), str(script)
    parts = parts_of(source.decode(errors="replace"), script, context.spec.cells) if context.spec.cells else None
    if parts is None:
        exec(compile(source, path, "exec", dont_inherit=True), names)  # noqa: S102 - the user's program
        return
    above, main = parts
    if context.world_size == 1 or context.is_joining:
        exec(above, names)  # noqa: S102 - the user's program
        context.on_entry()
        exec(_compiled(main, path, above.co_flags & _FUTURES), names)  # noqa: S102 - the user's program
        return
    upper = "".join(source.decode().splitlines(keepends=True)[: main.body[0].lineno - 1])
    *prelude, entry = _pieces(ast.Module([*ast.parse(upper, path).body, *main.body], []), path)
    with _turn(context) as look:
        for piece in prelude:
            look()
            exec(piece, names)  # noqa: S102 - the user's program
    context.on_entry()
    exec(entry, names)  # noqa: S102 - the user's program


def parts_of(text: str, script: Path, cells: Mapping[str, str]) -> tuple[CodeType, ast.Module] | None:
    """Return the two parts of a program made from cells: above its `if __name__ == "__main__":`, and the rest.

    The rest keeps its line numbers. Returns None for any other program. The upper part is not parsed to a syntax tree,
    as it may hold a large literal.
    """
    at = text.rfind(_ENTRY)
    while at >= 0:
        above = text[: at + 1]
        try:
            main = ast.parse(text[at + 1 :], str(script))
            code: CodeType = compile(above, str(script), "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            at = text.rfind(_ENTRY, 0, at)  # the line is part of a string
            continue
        if not _is_entry(main):
            return None
        ast.increment_lineno(main, above.count("\n"))
        return code, with_last_values(main, text, script, cells)
    return None


def _is_entry(tree: ast.Module) -> bool:
    """Return whether it is a single `if __name__ == "__main__":`, with which every program made from cells ends."""
    match tree.body:
        case [
            ast.If(
                test=ast.Compare(
                    left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]
                )
            )
        ]:
            return True
        case _:
            return False


def _compiled(main: ast.Module, path: str, flags: int) -> CodeType:
    code: CodeType = compile(main, path, "exec", flags=flags, dont_inherit=True)
    return code


def _pieces(tree: ast.Module, path: str) -> Iterator[CodeType]:
    """Yield the statements of a program, each compiled as in the whole program."""
    flags = 0
    for node in tree.body:
        piece = compile(ast.Module([node], []), path, "exec", flags=flags, dont_inherit=True)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            flags |= sum(getattr(__future__, alias.name).compiler_flag for alias in node.names)
        yield piece


@contextmanager
def _turn(context: Context) -> Iterator[Callable[[], None]]:
    """Hold this learner's turn; yield a function to call before each statement.

    Learners with private directories take no turns: what one of them downloads is of no use to the others.
    """
    if PRIVATE in os.environ:
        yield lambda: None
        return
    turn = _Turn(context.job_dir / LOCK, context.generation, is_first=context.rank == 0)
    try:
        turn.take()
        yield turn.look
    finally:
        turn.leave()


class _Turn:
    """One learner's turn. Turns are exclusive until a learner has downloaded nothing; then all others run at once.

    So learners that download a file each time, since it was not cached, also do so one after the other.
    """

    def __init__(self, path: Path, generation: int, *, is_first: bool) -> None:
        self._generation, self._is_first = generation, is_first
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_alone = self._has_fetched = self._is_over = False
        self._children = _children()
        self._undo = ExitStack()
        self._looked: set[str] = set()

    def take(self) -> None:
        """Wait for the turn."""
        hint = threading.Timer(_SILENCE_S, self._say_why)
        hint.daemon = True
        hint.start()
        try:
            self._wait()
        finally:
            hint.cancel()
        self._children = _children()
        self._undo.callback(_watch_connections(self._fetched))

    def _wait(self) -> None:
        if self._is_first:
            self._lock(fcntl.LOCK_EX)
            self._write(is_quiet=False)
            self._is_alone = True
            return
        give_up_s = time.monotonic() + _PATIENCE_S
        while True:
            self._lock(fcntl.LOCK_SH)
            generation, is_quiet = self._read()
            if generation >= self._generation or time.monotonic() > give_up_s:
                break
            self._lock(fcntl.LOCK_UN)
            time.sleep(_POLL_S)
        if generation == self._generation and is_quiet:
            return
        self._lock(fcntl.LOCK_EX)
        if self._read() == (self._generation, True):
            self._lock(fcntl.LOCK_SH)
        else:
            self._is_alone = True

    def look(self) -> None:
        """Make a collective of all learners end this turn, if its module was imported meanwhile."""
        for module, name in _MEETINGS:
            found = sys.modules.get(module)
            original = getattr(found, name, None)
            if module in self._looked or original is None:
                continue
            self._looked.add(module)

            def meet(*args: Any, _original: Any = original, **more: Any) -> Any:
                self.leave()
                return _original(*args, **more)

            setattr(found, name, functools.wraps(original)(meet))
            self._undo.callback(setattr, found, name, original)

    def leave(self) -> None:
        """End the turn and release the others. Later calls do nothing."""
        if self._is_over:
            return
        self._is_over = True
        self._undo.close()
        is_through = sys.exception() is None
        if self._is_alone and is_through and not self._has_fetched and _children() == self._children:
            self._write(is_quiet=True)
        self._lock(fcntl.LOCK_UN)  # explicitly: forked children keep the file open
        os.close(self._fd)

    def _fetched(self) -> None:
        self._has_fetched = True

    def _lock(self, how: int) -> None:
        fcntl.flock(self._fd, how)

    def _read(self) -> tuple[int, bool]:
        text = os.pread(self._fd, 1000, 0)
        if not text:
            return -1, False
        body = json.loads(text)
        return int(body["generation"]), bool(body["is_quiet"])

    def _write(self, *, is_quiet: bool) -> None:
        """Write the state in a single write of fixed length, so that no reader sees a part of it."""
        body = json.dumps({"generation": self._generation, "is_quiet": is_quiet}).ljust(80)
        os.pwrite(self._fd, body.encode(), 0)

    def _say_why(self) -> None:
        print("[waiting while another learner runs the cells above the training cell: downloads run only once]")


def _children() -> tuple[float, int, int]:
    """Return values that change when a child process ends, which may have downloaded something."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_minflt, used.ru_nvcsw


def _watch_connections(seen: Callable[[], None]) -> Callable[[], None]:
    """Call `seen` at each network connection from now on; return a function that stops this."""

    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            seen()
        super(socket.socket, self).connect(address)

    def connect_ex(self: socket.socket, address: Any) -> int:
        if self.family != socket.AF_UNIX:
            seen()
        return super(socket.socket, self).connect_ex(address)

    kind: Any = socket.socket
    ours = {"connect": connect, "connect_ex": connect_ex}
    for name, function in ours.items():
        setattr(kind, name, function)

    def stop() -> None:
        for name, function in ours.items():
            if vars(kind).get(name) is function:
                delattr(kind, name)

    return stop
