"""Recorder of a kernel: the executed cells and the facts about its variables that capture needs. Changes nothing.

Only methods of exactly known types are called: a property of the user's class may run the user's code.
"""

from __future__ import annotations

import datetime as dt
import importlib
import linecache
import math
import os
import re
import sys
import time
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from jupyter_dlaas.analysis.cells import clean_cell, files_run, lines_of
from jupyter_dlaas.analysis.model import (
    MODULE_BYTES_MAX,
    ExecutedCell,
    KernelFacts,
    ModuleState,
    NameFact,
    OwnModule,
    ResultRef,
)
from jupyter_dlaas.analysis.own_modules import state_of
from jupyter_dlaas.capture.input_files import read_files
from jupyter_dlaas.kernel.interrupts import InterruptWatch
from jupyter_dlaas.kernel.module_versions import is_edited, of_before_reload
from jupyter_dlaas.objects.code_versions import is_own_module
from jupyter_dlaas.runtime.system.hash_seed import own_hash_seed
from jupyter_dlaas.transfer import torch_layers
from jupyter_dlaas.transfer.object_traversal import (
    fields_of,
    is_a,
    is_from,
    made_of,
    process_bound_kind,
    title,
    trained_in,
)

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell

__all__ = ["Recorder", "facts_of"]

LITERAL_CHARS_MAX: Final = 4000
SENT_MAX: Final = 20_000  # objects of a pushed variable to search for weights
OTHERS_MAX: Final = 2000  # objects of each other variable to search
TEXTS_MAX: Final = 20  # first elements of a container to test for text
PARTS_MAX: Final = 1000  # first elements of a container by which its size is estimated
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
_FIELDS: Any = vars(types.ModuleType)["__dict__"].__get__
_WRITABLE: Final = (
    (dt.datetime, "datetime"),
    (dt.date, "datetime"),
    (dt.timedelta, "datetime"),
    (uuid.UUID, "uuid"),
    (PosixPath, "pathlib"),
)
"""Small plain values whose source needs an import, and the import. No dict: a class as key may have its own hash."""
IMMUTABLE_NAMES: Final = frozenset({"torch.device", "torch.dtype", "torch.Size", "numpy.dtype"})


class Recorder:
    """Record of the cells that ran in a shell, in order, with durations.

    Earlier cells come from IPython's history, so nothing is lost with `%load_ext` in the middle of a notebook.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._cells = _known.setdefault(shell, [])
        known = {(cell.count, cell.source): cell for cell in self._cells}  # recorded before %reload_ext
        self._cells[:] = [known.get((cell.count, cell.source), cell) for cell in _earlier_cells(shell)]
        self._random_state: str | None = None
        self._beginnings: dict[str, Any] = {}
        """Libraries that were imported since, and their initial random state."""
        self._at_load = _random_state(None, shell.user_ns)
        self._interrupts = InterruptWatch()
        self._starts: list[_CellStart] = []
        """Running cells, the inner ones (`%run other.ipynb`) last."""
        shell.events.register("pre_run_cell", self._before)
        shell.events.register("post_run_cell", self._after)
        _streams().note_beginnings(self._beginnings.__setitem__)

    def close(self) -> None:
        """Unregister from the shell's events."""
        self._shell.events.unregister("pre_run_cell", self._before)
        self._shell.events.unregister("post_run_cell", self._after)
        while self._starts:
            self._interrupts.end(self._starts.pop().interrupts_before)

    def cells(self, before: int | None = None) -> tuple[ExecutedCell, ...]:
        """Return all executed cells, or those before an execution count."""
        return tuple(cell for cell in self._cells if before is None or cell.count < before)

    def _before(self, info: ExecutionInfo) -> None:
        before = self._starts[-1].random_state if self._starts else self._random_state
        random_state = _random_state(before, self._shell.user_ns)
        self._random_state = random_state
        place, interrupts = _current_directory(), self._interrupts.begin()
        self._starts.append(_CellStart(info.raw_cell or "", time.perf_counter(), place, random_state, interrupts))

    def _after(self, result: ExecutionResult) -> None:
        info, count = result.info, result.execution_count
        start = self._start_of(info.raw_cell or "") if info is not None else None
        interrupted = start is not None and self._interrupts.end(start.interrupts_before)
        if info is None or count is None or info.silent or not info.store_history or not (info.raw_cell or "").strip():
            return  # a request of the front end itself, for completions or variables
        if start is None and self._cells and self._cells[-1].count == count:
            self._cells.pop()  # the cell that loaded the extension, known from the history
        error = result.error_in_exec or result.error_before_exec
        self._cells.append(
            ExecutedCell(
                count=count,
                source=info.raw_cell,
                raised=error is not None,
                raised_line=_raised_line(self._shell, info.raw_cell, error) if error is not None else None,
                raised_in=_raised_in(self._shell, error) if error is not None else "",
                interrupted=interrupted,
                duration_s=time.perf_counter() - start.at_s if start is not None else None,
                cell_id=info.cell_id,
                directory=start.directory if start is not None else None,
                random_state=self._random_state_at_start(info.raw_cell, start),
                ended_s=time.time(),
                has_value=_has_value(info.raw_cell, is_shown=result.result is not None),
            )
        )

    def _random_state_at_start(self, source: str, start: _CellStart | None) -> str | None:
        """Return the random state at the start of a cell, with the initial state of libraries that it imported."""
        random_state = start.random_state if start is not None else None
        if start is None and _first_line(source).startswith("%load_ext"):  # nothing of the cell ran before this
            random_state = self._at_load
        return _streams().completed(random_state, self._beginnings) if random_state is not None else None

    def _start_of(self, source: str) -> _CellStart | None:
        """Return the record of the start of an ended cell, or None for the cell that loaded the extension."""
        while self._starts:
            start = self._starts.pop()
            if start.source == source:
                return start
            self._interrupts.end(start.interrupts_before)
        return None


@dataclass(frozen=True, slots=True)
class _CellStart:
    """Start of a cell."""

    source: str
    at_s: float
    directory: str | None
    random_state: str | None
    interrupts_before: int


_known: WeakKeyDictionary[Any, list[ExecutedCell]] = WeakKeyDictionary()
"""Cells recorded per shell."""


def facts_of(
    shell: InteractiveShell,
    cells: Sequence[ExecutedCell],
    *,
    directory: Path | None = None,
    results: Mapping[str, ResultRef] | None = None,
    sent: Iterable[str] = (),
) -> KernelFacts:
    """Collect what capture may need: facts about the shell's variables, the user's modules and files of `%run`.

    `results`: names that -o of an earlier job assigned, as long as the variable still is that object, which the caller
    must know. `sent`: names to send by value; the notebook's classes and functions they consist of are collected, too.
    """
    directory_now = (directory or Path.cwd()).resolve()
    hidden = frozenset(shell.user_ns_hidden)
    by_reference = results or {}
    sent_names = {*sent, *by_reference}
    users = {
        name: value
        for name, value in list(shell.user_ns.items())
        if _is_users(name, value, shell.user_ns_hidden if name in hidden else None)
    }
    names = {name: _fact(value, by_reference.get(name), is_sent=name in sent_names) for name, value in users.items()}
    for name, others in _shared(users, sent).items():
        names[name] = replace(names[name], shares=others)
    for name in names if by_reference else ():
        if trained_in(users[name], OTHERS_MAX):
            names[name] = replace(names[name], has_weights=True)
    for name, value in users.items():
        if former := _former_class(type(value), shell.user_ns):
            names[name] = replace(names[name], former_class=former)
    files = read_files(cells, names, directory_now)
    modules = own_modules(directory_now)
    own = {name: one for name, one in sys.modules.copy().items() if is_own_module(one)}
    for name, value in users.items() if own else ():
        if stale := of_before_reload(value, own):
            names[name] = replace(names[name], of_before_reload=stale)
    return KernelFacts(
        names=names,
        own_modules=modules,
        edited_elsewhere=tuple(_edited_elsewhere(own, modules)),
        files=_texts(files_run(cells), directory_now),
        directory=str(directory_now),
        hash_seed=own_hash_seed(),
        started_in=shell.starting_dir,
        random_state=_random_state(None, users),
        modified=files.modified,
        missing=files.missing,
        module_states=_module_states(own),
    )


def _module_states(own: Mapping[str, Any]) -> dict[str, ModuleState]:
    """Return the states of the user's modules, from their files; none of modules beyond a total size."""
    found = {}
    left = MODULE_BYTES_MAX
    for name, module in sorted(own.items()):
        path = Path(_FIELDS(module)["__file__"])
        with suppress(OSError, UnicodeDecodeError):
            left -= path.stat().st_size
            if left < 0:
                break
            text = path.read_text(encoding="utf-8")
            state = state_of(text, name, is_package=path.name == "__init__.py")
            found[name] = replace(state, **_handed_on(name, own))
    return found


def _handed_on(name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an imported module hands on: names for a star import, and where its objects come from."""
    space = dict(_FIELDS(own[name]))
    listed: Any = space.get("__all__")
    is_listed = type(listed) in (list, tuple)
    exports = [one for one in (listed if is_listed else space) if type(one) is str and one in space]
    origins, shared = {}, {}
    for key, value in space.items():
        if is_a(value, type, types.FunctionType):
            if value.__module__ in own and (value.__module__, value.__qualname__) != (name, key):
                origins[key] = (value.__module__, value.__qualname__)
        elif not key.startswith("__") and not is_a(value, types.ModuleType):
            others = frozenset(other for other in own if _FIELDS(own[other]).get(key, own) is value) - {name}
            if others:
                shared[key] = others
    names = tuple(one for one in exports if is_listed or not one.startswith("_"))
    return {"exports": names, "origins": origins, "shared": shared}


def _random_state(before: str | None, names: Mapping[str, object]) -> str:
    """Return the random state as text, as the same object as before if nothing was drawn."""
    found: str = _streams().written(names)
    return before if before == found else found


def _streams() -> Any:
    """Import the module on first use: the learner's side is not loaded unless needed."""
    return importlib.import_module("jupyter_dlaas.transfer.rng_state")


def _first_line(source: str) -> str:
    """Return the first line that is neither blank nor a comment."""
    lines = (line.strip() for line in source.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def _shared(users: Mapping[str, object], sent: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Map names that are sent to the other names that hold the same weights, layers or optimisers."""
    held = {name: trained_in(users[name], SENT_MAX) for name in sent if name in users}
    if not any(held.values()):
        return {}
    others = {name: trained_in(value, OTHERS_MAX) for name, value in users.items() if name not in held}
    return {
        name: tuple(sorted(other for other, other_parts in others.items() if not own_parts.isdisjoint(other_parts)))
        for name, own_parts in held.items()
    }


def _edited_elsewhere(own: Mapping[str, Any], known: Sequence[OwnModule]) -> Iterator[OwnModule]:
    """Yield the user's modules outside the directory that were edited after the kernel imported them."""
    directory_now = {module.name for module in known}
    for name, module in sorted(own.items()):
        if name not in directory_now and is_edited(module, Path(module.__file__)):
            yield OwnModule(name, module.__file__, is_edited=True)


def _current_directory() -> str | None:
    try:
        return str(Path.cwd().resolve())
    except OSError:  # the directory was removed
        return None


def own_modules(directory: Path) -> tuple[OwnModule, ...]:
    """Return the modules imported from below a directory, except from an environment inside it."""
    found = []
    # Strings instead of paths: with thousands of modules, paths take twenty times as long.
    below, prefix = f"{directory}{os.sep}", f"{sys.prefix}{os.sep}"
    for name, module in sorted(sys.modules.copy().items()):
        # From its __dict__: an attribute access would import a lazy module.
        file = (_FIELDS(module) if type(module) is types.ModuleType else fields_of(module)).get("__file__")
        if type(file) is not str or not file.endswith(".py") or name == "__main__":
            continue
        if not file.startswith(os.sep):
            file = f"{directory}{os.sep}{file}"
        if not file.startswith(below) or file.startswith(prefix) or name.partition(".")[0] == "jupyter_dlaas":
            continue
        path = Path(file)
        if not {"site-packages", "dist-packages"} & set(path.parts) and path.exists():
            found.append(OwnModule(name, str(path.relative_to(directory)), is_edited(module, path)))
    return tuple(found)


def _earlier_cells(shell: InteractiveShell) -> Iterator[ExecutedCell]:
    history = shell.history_manager
    if history is None:
        return
    raised: Mapping[int, Any] = getattr(history, "exceptions", {})  # since IPython 9
    shown = shell.user_ns.get("_oh", ())
    for count, source in enumerate(history.input_hist_raw):
        if count > 0 and source.strip():
            reported = _reported_line(count, raised[count]) if count in raised else None
            line = _page_line(source, reported) if reported is not None else None
            has_value = _has_value(source, is_shown=count in shown)
            yield ExecutedCell(
                count=count, source=source, raised=count in raised, raised_line=line, has_value=has_value
            )


def _has_value(source: str, *, is_shown: bool) -> bool | None:
    """Return whether a cell's last expression had a value; None if a semicolon may have hidden it."""
    return True if is_shown else None if source.rstrip().endswith(";") else False


def _reported_line(count: int, error: Any) -> int | None:
    """Return the line of a cell's own code in a traceback that IPython has kept as text."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.get("traceback", ())))
    found = re.search(rf"In\[{count}\], line (\d+)|<timed exec>:(\d+)", text)
    return int(found[1] or found[2]) if found is not None else None


def _raised_line(shell: InteractiveShell, source: str, error: BaseException) -> int | None:
    """Return the line of the raw cell that its top-level code was executing when the error was raised."""
    at = []
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_globals is shell.user_ns and frame.tb_frame.f_code.co_name == "<module>":
            at.append(frame.tb_lineno)
        frame = frame.tb_next
    if not at:
        return None
    return _page_line(source, at[-1] if source.lstrip().startswith("%%") else at[0])  # the outer frame is the magic's


def _raised_in(shell: InteractiveShell, error: BaseException) -> str:
    """Return the expression that the cell's top-level code was evaluating when the error was raised; "" if unknown."""
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        if at.tb_frame.f_globals is shell.user_ns and code.co_name == "<module>":
            return _segment(code.co_filename, *next(islice(code.co_positions(), at.tb_lasti // 2, None)))
        at = at.tb_next
    return ""


def _segment(file: str, line: int | None, last: int | None, begin: int | None, end: int | None) -> str:
    """Return a part of a text that was executed; the offsets in its lines count bytes."""
    if line is None or last is None or begin is None or end is None:
        return ""
    lines = [text.encode() for text in linecache.getlines(file)[line - 1 : last]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    return b"".join(lines).decode(errors="replace")


def _page_line(source: str, line: int) -> int | None:
    """Map a line of the executed code to the line of the raw cell."""
    lines = clean_cell(source).lines
    if lines and not source.lstrip().startswith("%%"):  # IPython drops blank lines at the start
        first = next(n for n, text in enumerate(lines_of(source), 1) if text.strip())
        lines = lines[lines.index(first) :] if first in lines else lines
    return lines[line - 1] if 0 < line <= len(lines) else None


def _is_users(name: str, value: object, hidden: Mapping[str, Any] | None) -> bool:
    """Return whether a variable is the user's: not IPython's own, unless the user has rebound it."""
    if name.startswith("_"):
        return False
    return hidden is None or hidden.get(name) is not value


def _fact(value: object, result: ResultRef | None, *, is_sent: bool = False) -> NameFact:
    kind = type(value)
    module, qualname = title(kind)
    type_name = qualname if module in {"builtins", "__main__"} else f"{module}.{qualname}"
    of_library = {("torch.nn.parameter", "Parameter"): "torch.nn.Parameter"}.get((module, qualname), type_name)
    return NameFact(
        type_name=of_library,
        size_bytes=_size(value),
        literal=_literal(value),
        has_text=_has_text(value, depth=3),
        shape=_shape(value),
        cannot_travel=process_bound_kind(value),
        is_callable=is_a(value, type, types.FunctionType, types.BuiltinFunctionType),
        is_immutable=_is_immutable(value) or type_name in IMMUTABLE_NAMES,
        requires_grad=(module, qualname) == ("torch", "Tensor") and value.requires_grad is True,  # type: ignore[attr-defined]
        module=_module_of(value),
        main_names=tuple(sorted(made_of(value))) if is_sent else (),
        result=result,
        has_running_statistics=torch_layers.has_running_statistics(value),
        has_cudnn_dropout=torch_layers.has_cudnn_dropout(value),
    )


def _former_class(kind: type, space: Mapping[str, Any]) -> str:
    """Return the name of a class of the notebook that now denotes another class; "" for others."""
    module, name = title(kind)
    return name if module == "__main__" and is_a(space.get(name), type) and space[name] is not kind else ""


def _module_of(value: Any) -> str | None:
    """Return the module of a function or class; None for everything else."""
    if is_a(value, types.FunctionType):
        return value.__module__ if type(value.__module__) is str else None
    return title(value)[0] if is_a(value, type) else None


def _is_immutable(value: object) -> bool:
    """Return whether no call can change a value, nor the parts of a tuple: optax's optimisers are two functions."""
    if is_a(value, tuple):
        parts: Iterator[object] = tuple.__iter__(value)  # type: ignore[arg-type]
        return all(is_a(part, *IMMUTABLE) and not _is_bound(part) for part in parts)
    return is_a(value, *IMMUTABLE) and not _is_bound(value)


def _is_bound(value: object) -> bool:
    """Return whether the value is a bound method of an object, as in `add = items.append`."""
    owner = value.__self__ if type(value) is types.BuiltinFunctionType else None
    return owner is not None and not isinstance(owner, types.ModuleType | type)


def _literal(value: object) -> str | None:
    """Return source text for a small plain value; None for everything else."""
    if is_a(value, list) and is_from(value, "IPython.utils.text", "SList"):
        value = list(list.__iter__(value))  # type: ignore[arg-type]  # `files = !ls`
    text = _plain(value, depth=4)
    return text if text is not None and len(text) <= LITERAL_CHARS_MAX else None


def _plain(value: Any, depth: int) -> str | None:
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return f'float("{value}")'
    if kind is str or kind is bytes:
        return repr(value) if len(value) <= LITERAL_CHARS_MAX else None
    if kind is int or kind is float or kind is bool or kind is complex or value is None:
        return repr(value)
    for writable, module in _WRITABLE:
        if kind is writable:
            return _imported(value, module)
    if depth == 0:
        return None
    if kind is list or kind is tuple or kind is set:
        if len(value) > LITERAL_CHARS_MAX // 2:
            return None
        parts = [_plain(part, depth - 1) for part in value]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        if kind is list:
            return f"[{', '.join(known)}]"
        if kind is set:
            return f"{{{', '.join(sorted(known))}}}" if known else "set()"
        return f"({', '.join(known)}{',' if len(known) == 1 else ''})"
    if kind is dict and len(value) <= LITERAL_CHARS_MAX // 4:
        pairs = [(_plain(k, depth - 1), _plain(v, depth - 1)) for k, v in value.items()]
        if any(k is None or v is None for k, v in pairs):
            return None
        return "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
    return None


def _imported(value: Any, module: str) -> str | None:
    """Return source text with an import: `__import__("uuid").UUID('…')`; None if there is none."""
    import_text = f'__import__("{module}").'
    if module == "datetime":
        zone = getattr(value, "tzinfo", None)
        is_known = zone is None or zone is dt.UTC
        return repr(value).replace("datetime.", import_text) if is_known else None
    return import_text + repr(value).removeprefix("Posix")


def _has_text(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind is str or kind is bytes:
        return True
    is_container = kind is list or kind is tuple or kind is dict or kind is set or kind is frozenset
    if depth == 0 or not is_container:
        return False
    parts = list(islice(value, TEXTS_MAX))
    parts += list(islice(dict.values(value), TEXTS_MAX)) if kind is dict else []
    return any(_has_text(part, depth - 1) for part in parts)


def _class_of(module: str, name: str) -> object:
    """Return a class of an imported library; never imports anything."""
    library = sys.modules.get(module)
    return fields_of(library).get(name) if library is not None else None


def _size(value: Any) -> int | None:
    kind = type(value)
    if kind is _class_of("torch", "Tensor") or kind is _class_of("torch.nn.parameter", "Parameter"):
        return int(value.element_size() * value.nelement())
    if is_from(value, "torch.nn.modules.module", "Module"):
        return _weights(value)
    if is_a(value, _class_of("numpy", "ndarray")):
        return int(_attribute("numpy", "ndarray", "nbytes", value))
    if kind is _class_of("pandas", "DataFrame") or kind is _class_of("pandas", "Series"):
        used = value.memory_usage()
        return int(used if kind is _class_of("pandas", "Series") else used.sum())
    if kind is list or kind is tuple or kind is dict or kind is set:
        sizes = (_size(part) for part in _elements(value))
        return sum(size for size in sizes if size is not None) + sys.getsizeof(value)
    return None


def _weights(module: object) -> int:
    """Return the size of a torch module's parameters and buffers, each once, without calling methods of subclasses."""
    seen: set[int] = set()
    total = 0
    todo = [module]
    while todo:
        fields = fields_of(todo.pop())
        for name in ("_parameters", "_buffers", "_modules"):
            held: Any = fields.get(name)
            new = [part for part in dict.values(held) if id(part) not in seen] if is_a(held, dict) else []
            seen.update(map(id, new))
            if name == "_modules":
                todo += new
            else:
                total += sum(_size(part) or 0 for part in new)
    return total


def _shape(value: Any) -> str | None:
    kind = type(value)
    if kind is _class_of("torch", "Tensor") or kind is _class_of("pandas", "DataFrame"):
        return str(tuple(value.shape))
    if is_a(value, _class_of("numpy", "ndarray")):
        return str(tuple(_attribute("numpy", "ndarray", "shape", value)))
    return None


def _attribute(module: str, kind: str, name: str, value: object) -> Any:
    """Return an attribute through the library's own class, regardless of overrides in a subclass."""
    return vars(_class_of(module, kind))[name].__get__(value)


def _elements(value: Any) -> Iterator[object]:
    for part in list(islice(dict.values(value) if type(value) is dict else value, PARTS_MAX)):
        if not is_a(part, list, tuple, dict, set):
            yield part


def _texts(names: Iterable[str], directory: Path) -> dict[str, str]:
    found = {}
    for name in names:
        path = directory / os.path.expanduser(name)  # noqa: PTH111 - unlike Path, it accepts `~` without a home
        if path.is_file():
            found[name] = path.read_text(encoding="utf-8", errors="replace")
    return found
