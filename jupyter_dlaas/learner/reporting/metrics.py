"""Logged metrics: metrics.jsonl and `run.history`, complete across halts, resizes and crashes."""

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.learner.reporting.notes import NOT_FINITE, report
from jupyter_dlaas.wire.codec import decode_float, encode_float

__all__ = ["History", "Metrics", "number_of"]

_PATIENCE_S: Final = 5.0
"""The time in seconds to wait for the last line of the former writer, which is about to end or dead."""
History = dict[str, list[float]]
"""Metric -> all its values in the order in which they were logged."""


def number_of(name: str, value: Any) -> float:
    """Convert a logged value to a float; accepts a tensor or array of one element, or an object with `__float__`.

    Raises TypeError with the metric's name and what to log instead. If a device fails while the value is read, its own
    error is raised.
    """
    if type(value) is float:
        return value
    _refuse(name, value)
    try:
        if hasattr(value, "item"):
            value = value.item()
    except RuntimeError as error:  # CUDA reports earlier failures here: show that cause
        error.add_note(f"Raised while run.log({name}=…) read the value.")
        raise
    except Exception as error:
        raise _not_a_number(name, _typed(value), f"Log {name}=float(…).", error) from error
    _refuse(name, value)
    try:
        return float(value)
    except OverflowError as error:
        what = f"a value that is too large for a float ({type(value).__name__})"
        raise _not_a_number(name, what, f"Log its logarithm: {name}=math.log10(value).") from error
    except Exception as error:
        raised = error if hasattr(value, "__float__") else None
        raise _not_a_number(name, _typed(value), f"Log {name}=float(…).", raised) from error


def _refuse(name: str, value: Any) -> None:
    """Raise TypeError with matching advice for a value that is known not to be a single number."""
    kind = type(value).__name__
    size = _size(value)
    if value is None or size == 0:
        raise _not_a_number(name, "None" if value is None else f"an empty {kind}", f"Leave {name} out of this call.")
    if isinstance(value, dict):
        raise _not_a_number(name, f"a {kind}", "Log its numbers by name: run.log(**value).")
    if isinstance(value, list | tuple):
        raise _not_a_number(name, f"a {kind}", f"Log one number: {name}=sum(value) / len(value).")
    if size is not None and size > 1:
        raise _not_a_number(name, f"{_typed(value)} with {size} elements", f"Log one number: {name}=value.mean().")
    if isinstance(value, str | bytes):
        raise _not_a_number(name, f"the {kind} {value[:40]!r}", f"Log {name}=float(…), or print the text.")
    if isinstance(value, complex):
        raise _not_a_number(name, "a complex number", f"Log its magnitude: {name}=abs(value).")


def _typed(value: Any) -> str:
    return f"a value of type {type(value).__name__}"


def _size(value: Any) -> int | None:
    """Return the number of elements of a tensor, an array or a series; None for anything else."""
    with suppress(Exception):  # no shape, or one with an unknown dimension
        return math.prod(int(length) for length in value.shape)
    return None


def _not_a_number(name: str, what: str, advice: str, error: Exception | None = None) -> TypeError:
    raised = f" ({type(error).__name__}: {error})" if error is not None else ""
    return TypeError(f"run.log({name}=…): {what} is not a number{raised}. {advice}")


_NAN_CHECKS: Final = (
    ("torch", "torch.autograd.set_detect_anomaly(True)"),
    ("jax", 'jax.config.update("jax_debug_nans", True)'),
    ("tensorflow", "tf.debugging.enable_check_numerics()"),
)
"""The debugging aids of frameworks to find the first NaN."""


def _nan_advice() -> str:
    checks = [check for module, check in _NAN_CHECKS if module in sys.modules]
    return f" To find the operation that produced it: {checks[0]}" if checks else ""


def _is_ours(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Metrics:
    """The metrics file of one job, written by the current rank 0; without a path, only the history is kept."""

    def __init__(self, path: Path | None, step: int | None) -> None:
        """Read the history up to `step`, from which training continues; None if training starts."""
        self.history: History = {}
        self._not_finite: set[str] = set()
        """Metrics that were reported as NaN or infinite."""
        self._path = path
        self._fd: int | None = None
        self._waiting = b""
        """Data that a full disk has not accepted yet, starting with the rest of a torn line."""
        self._is_waiting = False
        """True while records are collected to be written together."""
        self._is_later = False
        self._step = -1 if step is None else step
        if path is not None:
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        kept: list[tuple[int, dict[str, Any]]] = []
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if "rewind" in record:
                kept = [one for one in kept if one[0] <= record["rewind"]]
            elif isinstance(record.get("values"), dict):
                kept.append((int(record.get("step", 0)), record["values"]))
        self._is_later = any(step > self._step for step, _ in kept)
        for step, values in kept:
            if step <= self._step:
                self._keep(values)

    def _keep(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.history.setdefault(name, []).append(decode_float(value))
            if not math.isfinite(self.history[name][-1]):
                self._not_finite.add(name)

    def open(self, inherited: History | None = None) -> None:
        """Become the file's writer: remove a torn line, and record the rewind to this step.

        Waits for the former writer, which may be about to write its last line. Where that one has a file of its own,
        `inherited` is the history that this learner has in memory: the guardian appends this file to the other.
        """
        if self._path is None or self._fd is not None:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        until_s = time.monotonic() + _PATIENCE_S
        while not _is_ours(fd) and time.monotonic() < until_s:
            time.sleep(0.002)
        self.history = {}
        self._not_finite.clear()
        self._read(self._path)
        size = os.fstat(fd).st_size
        tail = os.pread(fd, 1 << 16, max(0, size - (1 << 16)))
        torn = len(tail) - (tail.rfind(b"\n") + 1)
        if torn:
            os.ftruncate(fd, size - torn)
        self._fd = fd
        if inherited is not None:
            self.history = inherited
        if self._is_later or inherited is not None:
            self._write({"t": time.time(), "rewind": self._step})

    def close(self) -> None:
        """Release the file for the next writer."""
        if self._fd is not None:
            self.flush()
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # otherwise a forked data worker would keep the lock
            os.close(self._fd)
            self._fd = None

    def log(self, values: dict[str, float], *, step: int, epoch: int, source: str, at_s: float | None = None) -> None:
        """Add one record. NaN and infinite values are reported once per metric.

        `at_s` is the time of the values in seconds of the system clock; None: now.
        """
        if self._fd is not None:
            self._report_not_finite(values, step)
        self._keep(dict(values))
        if self._fd is not None:
            sent = {name: encode_float(value) for name, value in values.items()}
            now_s = time.time() if at_s is None else at_s
            self._write({"t": now_s, "step": step, "epoch": epoch, "values": sent, "source": source})

    def _report_not_finite(self, values: dict[str, float], step: int) -> None:
        """Report which metrics became NaN or infinite, and at which step."""
        for name, value in values.items():
            if math.isfinite(value) or name in self._not_finite:
                continue
            self._not_finite.add(name)
            what = "NaN" if math.isnan(value) else "infinite"
            said = f"became {what} at step {step}" if self.history.get(name) else f"is {what} from the first value"
            at = "" if self.history.get(name) else f" (step {step})"
            report(NOT_FINITE, f"{name} {said}{at}.{_nan_advice() if math.isnan(value) else ''}")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Return a context in which all records are written together."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False
            self.flush()

    def _write(self, record: dict[str, Any]) -> None:
        self._waiting += json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if not self._is_waiting:
            self.flush()

    def flush(self) -> None:
        """Write pending data. A full disk does not end the training: the rest is written later."""
        with suppress(OSError):
            while self._waiting and self._fd is not None:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
