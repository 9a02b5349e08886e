"""The end of a learner: like the interpreter's shutdown for a script, without tearing down imported modules.

A process that imported torch takes 0.15 s to tear itself down, so the learner ends with `os._exit`. What a script may
rely on runs before that, in the interpreter's order: threads, exit handlers, open files.
"""

from __future__ import annotations

import _io
import atexit
import ctypes
import faulthandler
import fcntl
import gc
import logging
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any, Final

__all__ = ["Shutdown", "flush_streams", "join_threads"]

Place = Callable[[str, int, str], str]
"""Describes a location, given by file, line and function, for the user."""

_EXIT_S: Final = 600.0
"""The time in seconds for exit handlers and open files; non-daemon child processes are waited for without limit."""
_FAILED_EXIT_S: Final = 60.0
"""The same time for a program that failed, including its child processes."""
_REARM_S: Final = 5.0
_THREADS_S: Final = 5.0
"""The time in seconds for the threads of a program that failed."""
_SILENCE_S: Final = 2.0
_NAMED_MAX: Final = 5
_COMMAND_MAX: Final = 100
_HELPERS: Final = ("multiprocessing", "loky", "torch._inductor", "wandb-core")
"""Parts of command lines of processes that libraries start and end themselves."""
_CONSTANT: Final = (ModuleType, FunctionType, BuiltinFunctionType, type, str, bytes, int, float, complex, type(None))
"""Types of values that hold no file, and that other objects' finalizers may need."""
_INSTALLED: Final = tuple(
    f"{folder}{os.sep}" for folder in (sys.prefix, sys.base_prefix, Path(__file__).parent.parent.parent)
)
"""Directories of installed modules, which are not the user's even if they lie in the working directory."""
_OWN_FILES: Final = frozenset({"metrics.jsonl", "prelude.lock", "stdout.log"})


# -- threads ----------------------------------------------------------------------------------------------------------


def join_threads(place: Place, limit: str = "") -> None:
    """Wait for threads as the interpreter does: shut down executors first, then join every non-daemon thread.

    A long wait is explained once in the log, with its `limit`.
    """
    hint = threading.Timer(_SILENCE_S, _explain, [place, limit])
    hint.daemon = True
    if _others():
        hint.start()
    try:
        _shut_executors_down()
        while others := _others():
            for thread in others:
                thread.join()
    finally:
        hint.cancel()


def _others() -> list[threading.Thread]:
    """Return the threads that the interpreter would wait for."""
    mine = (threading.current_thread(), threading.main_thread())
    return [one for one in threading.enumerate() if one not in mine and not one.daemon]


def _shut_executors_down() -> None:
    """Call handlers that concurrent.futures, joblib and others registered to run before threads are joined.

    The handler registered last runs first.
    """
    handlers: list[Callable[[], object]] = vars(threading).get("_threading_atexits", [])
    while handlers:
        handler = handlers.pop()
        try:
            handler()
        except Exception:  # noqa: BLE001 - a library's handler; the interpreter also shows the error and continues
            traceback.print_exc()


def _explain(place: Place, limit: str) -> None:
    frames, others = sys._current_frames(), _others()
    _say("thread", [f'"{one.name}"{_at(frames.get(one.ident or 0), place)}' for one in others], limit)


def _say(kind: str, names: Sequence[str], limit: str) -> None:
    if names:
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        count = f"a {kind}" if len(names) == 1 else f"{len(names)} {kind}{'es' if kind.endswith('s') else 's'}"
        waits = f"The job waits{limit} for {count} to end: {', '.join(names[:_NAMED_MAX])}{more}"
        print(f"[The program has finished. {waits}]", file=sys.stderr, flush=True)


def _at(frame: FrameType | None, place: Place) -> str:
    """Describe a thread's location: in the program if it is there, otherwise in the innermost function."""
    stack = list(_outwards(frame))
    if not stack:
        return ""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    code, line = next((one for one in stack if one[0].co_filename == main), stack[0])
    return f" in {place(code.co_filename, line, code.co_name)}"


def _outwards(frame: FrameType | None) -> Iterator[tuple[Any, int]]:
    while frame is not None:
        yield frame.f_code, frame.f_lineno
        frame = frame.f_back


# -- exit handlers and child processes --------------------------------------------------------------------------------


def _watch_exit(handlers_ran: threading.Event, place: Place, has_failed: bool, is_asked: bool) -> None:
    """Explain slow exit handlers, and extend the limit for child processes, for which the interpreter waits, too."""
    is_explained = False
    while not handlers_ran.wait(_REARM_S if is_explained else _SILENCE_S):
        children = _children()
        if children and not has_failed:
            faulthandler.dump_traceback_later(_EXIT_S, exit=True)
        if not is_explained:
            is_explained = True
            if children:
                names = [f'"{one.name}" (pid {one.pid})' for one in children]
                _say("process", names, f" at most {_FAILED_EXIT_S:.0f} s" if has_failed else "")
            else:
                at = _at(sys._current_frames().get(threading.main_thread().ident or 0), place)
                limit = f"at most {_FAILED_EXIT_S if has_failed else _EXIT_S:.0f} s"
                if is_asked:
                    limit = "until its grace period ends"
                text = f"[The program has finished. The job waits {limit} for an exit handler{at}]"
                print(text, file=sys.stderr, flush=True)


def _children() -> list[Any]:
    """Return the `multiprocessing` processes that its exit handler waits for."""
    process = sys.modules.get("multiprocessing.process")
    return [one for one in tuple(vars(process).get("_children", ())) if not one.daemon] if process is not None else []


def _running_programs() -> list[str]:
    """Return the command lines of child processes that run other programs; multiprocessing's helpers are excluded."""
    own, found = _command_line(os.getpid()), []
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:  # a thread that has just ended
            continue
        for pid in children:
            text = _command_line(int(pid))
            if text and text != own and not any(helper in text for helper in _HELPERS):
                found.append(f"`{text[:_COMMAND_MAX]}`")
    return found


def _command_line(pid: int) -> str:
    """Return a process's command line; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


# -- shutdown ---------------------------------------------------------------------------------------------------------


class Shutdown:
    """The shutdown of a program after its result was written. Created before the program runs."""

    def __init__(self, own_folders: Iterable[Path], job_dir: Path) -> None:
        """Record the files open at present. `own_folders`: the directories of the user's own modules."""
        self._own_folders = tuple(f"{folder}{os.sep}" for folder in own_folders)
        self._job_dir = str(job_dir)
        self._before = self._files()

    def run(self, place: Place, *, has_failed: bool, is_asked: bool = False) -> None:
        """Run exit handlers and flush open files. A step that hangs is ended after a limit; the log shows where.

        `is_asked`: the job was asked to stop, and its guardian's limit is shorter.
        """
        flush_streams()
        faulthandler.dump_traceback_later(_FAILED_EXIT_S if has_failed else _EXIT_S, exit=True)
        if has_failed and _others():  # a failed program must not keep its devices for long
            limit = f" at most {_THREADS_S:.0f} s"
            helper = threading.Thread(target=join_threads, args=[place, limit], daemon=True)
            helper.start()
            helper.join(_THREADS_S)
        handlers_ran = threading.Event()
        with suppress(RuntimeError):  # thread limit reached: nothing is explained
            threading.Thread(target=_watch_exit, args=[handlers_ran, place, has_failed, is_asked], daemon=True).start()
        _spare_teardown()
        with suppress(BaseException):
            atexit._run_exitfuncs()
        handlers_ran.set()
        with suppress(Exception):
            self._name_processes()
        with suppress(BaseException):
            self._finalize()
        with suppress(Exception):
            ctypes.CDLL(None).fflush(None)  # flush the output of C libraries

    def _finalize(self) -> None:
        """Drop the program's values, so that files are closed and `__del__` runs; then flush files that are still open.

        Costs almost nothing if no file is open and no value has a `__del__`.
        """
        modules = [one for one in list(sys.modules.values()) if self._is_own(one)]
        names = [vars(one) for one in modules]
        has_classes = any(
            isinstance(one, type) and _is_finalized(one, modules) for own in names for one in own.values()
        )
        has_values = any(hasattr(type(one), "__del__") for own in names for one in own.values())
        if not (has_classes or has_values or self._has_open_files()):
            return
        threading.excepthook = lambda *_: None  # daemon threads now miss their names
        for own in names:
            _clear(own)
        if has_classes:  # an object in a cycle may have one; the collector closes files in any order, so flush first
            _write_out(closes=False)
            gc.collect()
        if self._has_open_files():
            _write_out(closes=True)

    def _name_processes(self) -> None:
        """Report in the log which child programs still run: unlike those of a script, they end with the job."""
        left = _running_programs()
        if left:
            names = "; ".join(left[:_NAMED_MAX]) + (f" and {len(left) - _NAMED_MAX} more" * (len(left) > _NAMED_MAX))
            text = (
                f"[Still running, ended with the job: {names}. To wait for a process, call process.wait() in the cell.]"
            )
            print(text, file=sys.stderr, flush=True)

    def _is_own(self, module: object) -> bool:
        if not isinstance(module, ModuleType):  # libraries also put other objects there
            return False
        if module is sys.modules["__main__"]:
            return True
        path = vars(module).get("__file__")
        if not isinstance(path, str) or not path.startswith(self._own_folders):
            return False
        return not path.startswith(_INSTALLED) and "site-packages" not in path

    def _has_open_files(self) -> bool:
        try:
            return bool(self._files() - self._before)
        except OSError:  # no descriptor is left for the listing
            return True

    def _files(self) -> set[tuple[str, str]]:
        """Return this process's descriptors that are open for writing, with the names of their files or pipes."""
        found = set()
        for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
            with suppress(OSError):
                name = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - not a path either: "pipe:[4711]"
                mode = fcntl.fcntl(int(fd), fcntl.F_GETFL) & os.O_ACCMODE
                if mode != os.O_RDONLY and self._may_be_the_programs(name):
                    found.add((fd, name))
        return found

    def _may_be_the_programs(self, name: str) -> bool:
        if name.startswith("pipe:"):
            return True
        if not name.startswith("/") or name.endswith(" (deleted)") or name.startswith("/memfd:"):
            return False
        if name.startswith(self._job_dir) and name.rpartition("/")[2] in _OWN_FILES:
            return False
        return name.startswith("/dev/shm/") or not name.startswith("/dev/")  # noqa: S108 - checked, not used


def _is_finalized(cls: type, modules: Iterable[ModuleType]) -> bool:
    return cls.__module__ in {one.__name__ for one in modules} and hasattr(cls, "__del__")


def _clear(names: dict[str, Any]) -> None:
    """Drop a module's values in the order of their binding; keep functions, classes and constants."""
    for name in list(names):
        is_special = name.startswith("__") and name.endswith("__")
        if not is_special and not issubclass(type(names[name]), _CONSTANT):
            names[name] = None


def _write_out(*, closes: bool) -> None:
    """Flush the files that something still refers to (a closure, a cycle, a library), outermost layer first.

    `closes`: also close archives and compressed files, which write their last data on close.
    """
    layers: tuple[tuple[tuple[type, ...], str], ...] = (
        (_loaded("zipfile.ZipFile", "h5py.File") if closes else (), "close"),
        ((_io._TextIOBase,), "flush"),
        (_loaded("gzip.GzipFile", "bz2.BZ2File", "lzma.LZMAFile") if closes else (), "close"),
        ((_io._BufferedIOBase,), "flush"),
    )
    objects = gc.get_objects()  # hundreds of thousands with torch, so they are searched once for all layers
    every = tuple(base for bases, _ in layers for base in bases)
    fitting = {kind for kind in set(map(type, objects)) if issubclass(kind, every)}
    files = [one for one in objects if type(one) in fitting]
    for bases, method in layers:
        for one in files:
            if issubclass(type(one), bases):
                with suppress(Exception):
                    getattr(one, method)()


def _loaded(*names: str) -> tuple[type, ...]:
    """Return the classes with these names whose modules are imported."""
    found = (getattr(sys.modules.get(name.partition(".")[0]), name.partition(".")[2], None) for name in names)
    return tuple(one for one in found if isinstance(one, type))


def _spare_teardown() -> None:
    """Skip what torch does at exit without a visible effect, which takes 0.2 s.

    Finalizers tear down its operator tables. A summary of compile times is made for a log record, with a library that
    is imported for it, even if that logger is off.
    """
    registry: dict[Any, Any] = vars(weakref.finalize).get("_registry", {})
    for finalizer, info in list(registry.items()):
        if getattr(info.func, "__module__", None) == "torch.library":
            finalizer.atexit = False
    compiler = vars(sys.modules.get("torch._dynamo.utils", object))
    summary, log = compiler.get("dump_compile_times"), compiler.get("log")
    if summary is not None and log is not None and not log.isEnabledFor(logging.INFO):
        atexit.unregister(summary)


def flush_streams() -> None:
    """Flush the standard streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, None, or of a class of the program
            stream.flush()
