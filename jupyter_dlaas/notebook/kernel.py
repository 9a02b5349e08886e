"""What capture must know of a running kernel: the cells that ran, and facts about its variables. Changes nothing there.

No method of a user's object is called but of exactly known types: a property may run code of the user's.
"""

from __future__ import annotations

import importlib.util
import io
import math
import socket
import sys
import threading
import time
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.notebook.cells import clean_cell, files_run, lines_of
from jupyter_dlaas.notebook.records import ExecutedCell, KernelFacts, NameFact, OwnModule, ResultRef

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell

__all__ = ["Recorder", "facts_of", "main_names"]

LITERAL_CHARS_MAX: Final = 500
PARTS_MAX: Final = 1000  # of a container, looked through for classes of the notebook
IMMUTABLE: Final = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    range,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
)
IMMUTABLE_NAMES: Final = frozenset({"torch.device", "torch.dtype", "torch.Size", "numpy.dtype"})
STAYS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    ((io.TextIOWrapper, io.BufferedIOBase, io.RawIOBase), "an open file"),
    ((type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore), "a lock"),
    (threading.Thread, "a thread"),
    (socket.socket, "a network connection"),
    (types.GeneratorType, "a generator that has begun"),
    ((types.CoroutineType, types.AsyncGeneratorType), "a coroutine"),
    (types.ModuleType, "a module"),
)


class Recorder:
    """Remembers what ran in a shell, in order, with durations, from the moment it is made.

    What ran before that comes from IPython's own history, so nothing is lost with `%load_ext` in mid-notebook.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._cells: list[ExecutedCell] = list(_earlier_cells(shell))
        self._started: tuple[str, float] | None = None
        shell.events.register("pre_run_cell", self._before)
        shell.events.register("post_run_cell", self._after)

    def close(self) -> None:
        """Stop listening."""
        self._shell.events.unregister("pre_run_cell", self._before)
        self._shell.events.unregister("post_run_cell", self._after)

    def cells(self, before: int | None = None) -> tuple[ExecutedCell, ...]:
        """All cells that ran, or those before an execution count."""
        return tuple(cell for cell in self._cells if before is None or cell.count < before)

    def _before(self, info: ExecutionInfo) -> None:
        self._started = (info.raw_cell or "", time.perf_counter())

    def _after(self, result: ExecutionResult) -> None:
        info, count = result.info, result.execution_count
        if info is None or count is None or info.silent or not info.store_history or not (info.raw_cell or "").strip():
            return  # a front end that asks behind the user's back, about completions or variables
        if self._started is None and self._cells and self._cells[-1].count == count:
            self._cells.pop()  # the cell that loaded the extension: the history knew its beginning
        duration = None
        if self._started is not None and self._started[0] == info.raw_cell:
            duration = time.perf_counter() - self._started[1]
        error = result.error_in_exec or result.error_before_exec
        self._cells.append(
            ExecutedCell(
                count=count,
                source=info.raw_cell,
                raised=error is not None,
                raised_line=_raised_line(self._shell, info.raw_cell, error) if error is not None else None,
                duration_s=duration,
                cell_id=info.cell_id,
            )
        )


def facts_of(
    shell: InteractiveShell,
    cells: Sequence[ExecutedCell],
    *,
    directory: Path | None = None,
    results: Mapping[str, ResultRef] | None = None,
) -> KernelFacts:
    """What capture may need to know about the shell's variables, its own modules and the files that `%run` named.

    `results`: names that an earlier job's -o assigned; they count while the variable still is that object, which the
    caller must know.
    """
    here = (directory or Path.cwd()).resolve()
    hidden = frozenset(shell.user_ns_hidden)
    by_reference = results or {}
    names = {
        name: _fact(value, by_reference.get(name))
        for name, value in list(shell.user_ns.items())
        if _is_users(name, value, shell.user_ns_hidden if name in hidden else None)
    }
    return KernelFacts(names=names, own_modules=own_modules(here), files=_texts(files_run(cells), here))


def own_modules(directory: Path) -> tuple[OwnModule, ...]:
    """The modules that this process imported from below a directory, but not from an environment that lies there."""
    found = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or name == "__main__":
            continue
        path = Path(file)
        if not path.is_absolute():
            path = directory / path
        if not path.is_relative_to(directory) or {"site-packages", "dist-packages"} & set(path.parts):
            continue
        if name.partition(".")[0] == "jupyter_dlaas" or path.is_relative_to(sys.prefix) or not path.exists():
            continue
        found.append(OwnModule(name, str(path.relative_to(directory)), _is_edited(path)))
    return tuple(found)


def main_names(value: object) -> tuple[str, ...]:
    """The classes and functions of the notebook that an object is made of, as far as a quick look tells."""
    found: set[str] = set()
    for part in _parts(value):
        maker = part if isinstance(part, type | types.FunctionType) else type(part)
        if maker.__module__ == "__main__":
            found.add(maker.__qualname__.partition(".")[0])
    return tuple(sorted(found - {"<lambda>"}))


def _earlier_cells(shell: InteractiveShell) -> Iterator[ExecutedCell]:
    history = shell.history_manager
    if history is None:
        return
    raised = getattr(history, "exceptions", {})
    for count, source in enumerate(history.input_hist_raw):
        if count > 0 and source.strip():
            yield ExecutedCell(count=count, source=source, raised=count in raised)


def _raised_line(shell: InteractiveShell, source: str, error: BaseException) -> int | None:
    """The line of the raw cell at which its own top-level code was when the error came."""
    at = []
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_globals is shell.user_ns and frame.tb_frame.f_code.co_name == "<module>":
            at.append(frame.tb_lineno)
        frame = frame.tb_next
    lines = clean_cell(source).lines
    if not at or not lines:
        return None
    is_wrapped = source.lstrip().startswith("%%")
    line = at[-1] if is_wrapped else at[0]  # under %%time the outer frame is the magic's own line
    if not is_wrapped:  # IPython drops blank lines at the start
        first = next(n for n, text in enumerate(lines_of(source), 1) if text.strip())
        lines = lines[lines.index(first) :] if first in lines else lines
    return lines[line - 1] if 0 < line <= len(lines) else None


def _is_users(name: str, value: object, hidden: Mapping[str, Any] | None) -> bool:
    """Variables of the user's: not IPython's own, unless the user bound such a name to something else."""
    if name.startswith("_"):
        return False
    return hidden is None or hidden.get(name) is not value


def _fact(value: object, result: ResultRef | None) -> NameFact:
    kind = type(value)
    type_name = kind.__name__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__name__}"
    module = value.__module__ if isinstance(value, type | types.FunctionType) else None
    return NameFact(
        type_name=type_name,
        size_bytes=_size(value),
        literal=_literal(value),
        shape=_shape(value),
        cannot_travel=next((why for kinds, why in STAYS if isinstance(value, kinds)), None),
        is_callable=isinstance(value, type | types.FunctionType | types.BuiltinFunctionType),
        is_immutable=isinstance(value, IMMUTABLE) or type_name in IMMUTABLE_NAMES,
        module=module,
        main_names=main_names(value),
        result=result,
    )


def _literal(value: object) -> str | None:
    """Source text of a small plain value; None for everything else."""
    if type(value).__module__ == "IPython.utils.text" and isinstance(value, list):
        value = list(value)  # `files = !ls`
    text = _plain(value, depth=4)
    return text if text is not None and len(text) <= LITERAL_CHARS_MAX else None


def _plain(value: object, depth: int) -> str | None:
    kind = type(value)
    if kind is float and not math.isfinite(value):  # type: ignore[arg-type]
        return f'float("{value}")'
    if kind in {int, float, bool, str, bytes, type(None)}:
        return repr(value) if not isinstance(value, str | bytes) or len(value) <= LITERAL_CHARS_MAX else None
    if depth == 0:
        return None
    if isinstance(value, list | tuple | set) and kind in {list, tuple, set} and len(value) <= LITERAL_CHARS_MAX // 2:
        parts = [_plain(part, depth - 1) for part in value]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        if kind is list:
            return f"[{', '.join(known)}]"
        if kind is set:
            return f"{{{', '.join(sorted(known))}}}" if known else "set()"
        return f"({', '.join(known)}{',' if len(known) == 1 else ''})"
    if isinstance(value, dict) and kind is dict and len(value) <= LITERAL_CHARS_MAX // 4:
        pairs = [(_plain(k, depth - 1), _plain(v, depth - 1)) for k, v in value.items()]
        if any(k is None or v is None for k, v in pairs):
            return None
        return "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
    return None


def _from(value: object, module: str, name: str) -> bool:
    """Is it of this class, in a library that is imported already? Never imports."""
    library = sys.modules.get(module)
    kind = getattr(library, name, None) if library is not None else None
    return isinstance(kind, type) and isinstance(value, kind)


def _size(value: Any) -> int | None:
    if _from(value, "torch", "Tensor"):
        return int(value.element_size() * value.nelement())
    if _from(value, "torch.nn", "Module"):
        tensors = [*value.parameters(), *value.buffers()]
        return int(sum(t.element_size() * t.nelement() for t in tensors))
    if _from(value, "numpy", "ndarray"):
        return int(value.nbytes)
    if _from(value, "pandas", "DataFrame"):
        return int(value.memory_usage().sum())
    if isinstance(value, list | tuple | dict | set) and type(value) in {list, tuple, dict, set}:
        return sum(filter(None, (_size(part) for part in _elements(value)))) + sys.getsizeof(value)
    return None


def _shape(value: Any) -> str | None:
    if any(_from(value, *kind) for kind in (("torch", "Tensor"), ("numpy", "ndarray"), ("pandas", "DataFrame"))):
        return str(tuple(value.shape))
    return None


def _elements(value: Any) -> Iterator[object]:
    parts = value.values() if isinstance(value, dict) else value
    for number, part in enumerate(parts):
        if number >= PARTS_MAX:
            return
        if not isinstance(part, list | tuple | dict | set):
            yield part


def _parts(value: Any) -> Iterator[object]:
    yield value
    if _from(value, "torch.nn", "Module"):
        yield from value.modules()
    elif type(value) in {list, tuple, dict, set}:
        for part in _elements(value):
            yield part
            if _from(part, "torch.nn", "Module"):
                yield from part.modules()  # type: ignore[attr-defined]
    elif isinstance(getattr(type(value), "__dict__", None), Mapping) and "__dict__" in dir(type(value)):
        yield from _elements(getattr(value, "__dict__", {}))


def _is_edited(path: Path) -> bool:
    """Is the file newer than what was compiled at import? Unknown counts as no."""
    try:
        compiled = Path(importlib.util.cache_from_source(str(path)))
        header = compiled.read_bytes()[:16]
        changed = int(path.stat().st_mtime)
    except (OSError, NotImplementedError):
        return False  # no compiled file: nothing to compare with
    is_timestamped = len(header) == 16 and header[4:8] == bytes(4)
    return is_timestamped and int.from_bytes(header[8:12], "little") != changed & 0xFFFFFFFF


def _texts(names: Iterable[str], directory: Path) -> dict[str, str]:
    found = {}
    for name in names:
        path = directory / Path(name).expanduser()
        if path.is_file():
            found[name] = path.read_text(encoding="utf-8", errors="replace")
    return found
