"""Adjustments that a process makes after it was forked from one with preloaded modules."""

from __future__ import annotations

import ctypes
import functools
import gc
import io
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.jobdir.atomic_files import FULL

__all__ = ["Output", "openblas", "restream", "set_threads", "show_environment", "wake"]


_SETTERS: Final = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads",
)


def wake(environment: Mapping[str, str]) -> None:
    """Give a fork the state of a direct start in this environment: streams, threads, garbage collector, marks."""
    show_environment(environment)
    restream()
    gc.enable()
    set_threads(environment.get("OMP_NUM_THREADS"))


class Output(io.FileIO):
    """Output stream that drops text while the disk is full instead of raising an error that would end the training."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return memoryview(data).nbytes


def restream() -> None:
    """Open new text streams over descriptors 0 to 2, unbuffered as with PYTHONUNBUFFERED=1."""
    streams: Any = sys  # the type stubs declare these attributes as final
    nothing = io.FileIO(0, "r", closefd=False)
    streams.stdin = streams.__stdin__ = io.TextIOWrapper(io.BufferedReader(nothing), encoding="utf-8")
    for fd, name, errors in ((1, "stdout", "surrogateescape"), (2, "stderr", "backslashreplace")):
        raw = Output(fd, "w", closefd=False)
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
        setattr(streams, name, stream)
        setattr(streams, f"__{name}__", stream)


def show_environment(environment: Mapping[str, str]) -> None:
    """Write this environment to /proc/PID/environ as far as it fits, the job's marks first.

    The kernel shows the memory in which the environment lay at program start, so a fork shows its parent's. A search
    for the processes of a job would not find it. The zygote is started with reserved space for this.
    """
    with suppress(OSError, ValueError, IndexError):
        text = Path("/proc/self/stat").read_bytes()
        fields = text[text.rindex(b")") + 2 :].split()
        low, high = int(fields[47]), int(fields[48])
        if not 0 < low < high:
            return
        marks = sorted(environment.items(), key=lambda pair: not pair[0].startswith("DLAAS_"))
        block = b""
        for name, value in marks:
            entry = os.fsencode(f"{name}={value}") + b"\0"
            if len(block) + len(entry) >= high - low:
                break
            block += entry
        ctypes.memset(low, 0, high - low)
        ctypes.memmove(low, block, len(block))


def set_threads(number: str | None) -> None:
    """Set the number of threads of torch and numpy's OpenBLAS, which read their variables only when they are loaded."""
    if number is None or not number.isdigit() or int(number) < 1:
        count = len(os.sched_getaffinity(0))
    else:
        count = int(number)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
    for path in openblas():
        library = ctypes.CDLL(path)
        for symbol in _SETTERS:
            with suppress(AttributeError):
                getattr(library, symbol)(count)
                break


@functools.cache
def openblas() -> tuple[str, ...]:
    """Return the loaded OpenBLAS libraries. Called before the first fork, because it takes some milliseconds."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123
        paths = {line.rstrip("\n").partition("/")[2] for line in maps if "openblas" in line}
        return tuple(sorted(f"/{path}" for path in paths if ".so" in path))
    return ()
