"""Outputs of unfinished jobs in a kernel, and the assignment of their results to variables.

Each unfinished job that was shown here has one daemon thread with a long poll. When the job ends, its outputs are
refreshed, so that the saved notebook is up to date, and the bytes of the wanted results are fetched. They are loaded
and assigned in the main thread, never at an arbitrary moment of a cell: immediately if the kernel is idle, after the
running cell, or as soon as that cell learns that the job has ended (`job.wait()`); in a terminal, which has no event
loop, before the next cell. A name that was rebound after the submission is left unchanged.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from jupyter_dlaas.analysis.model import ResultRef
from jupyter_dlaas.api import jobs
from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.client.discovery import SocketEndpoint
from jupyter_dlaas.client.follow import Follower
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.display import html, widget
from jupyter_dlaas.kernel.earlier_jobs import EarlierJobs
from jupyter_dlaas.suggest.advice_text import is_for_page
from jupyter_dlaas.transfer.object_traversal import trained_in
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.protocol import Cursor, JobView, NotFound, State

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionInfo, InteractiveShell

__all__ = ["JobFollower", "newest_cell"]

_MISSING: Final = object()
_MISSING_NAME: Final = re.compile(r"Can.t get attribute .(\w+). on <module .__main__.")
_LOG_TAIL_BYTES: Final = 2**14
_PATIENCE_S: Final = 10.0
_FETCH_S: Final = 600.0
_RETRY_PAUSE_MAX_S: Final = 60.0
_OBJECTS_MAX: Final = 2000
"""Maximum number of objects of a variable to search for weights."""


@dataclass(slots=True)
class _PendingResults:
    """Names to which results of a job will be assigned, with their values at submission."""

    names: tuple[str, ...]
    before: Mapping[str, object]
    note: str | None
    """Id of the display that reports the assignment."""
    streams: str | None = None
    """Random state of the kernel at submission (`rng_state.written`); None if this is not a submission."""


@dataclass(slots=True)
class _FollowedJob:
    """Job whose end a thread waits for."""

    job: Job
    displays: list[str] = field(default_factory=list)
    wanted: list[_PendingResults] = field(default_factory=list)
    has_ended: bool = False
    """True once a thread has claimed the work at the job's end."""
    done: threading.Event = field(default_factory=threading.Event)
    """Set once that work is done, except for the assignment."""


@dataclass(frozen=True, slots=True)
class _EndedJob:
    """Work for the main thread after the end of a job."""

    view: JobView
    wanted: _PendingResults
    raw: Mapping[str, bytes] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    source: Callable[[], str] | None = None
    """Function that fetches the job's program."""
    streams: str | None = None
    """Random state of the job at its end."""
    versions: Callable[[], Mapping[str, Any]] | None = None
    """Function that fetches the versions of the user's modules in the job."""


class JobFollower:
    """Follower of all unfinished jobs of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self.earlier = EarlierJobs()
        self._lock = threading.Lock()
        self._watched: dict[str, _FollowedJob] = {}
        self._ended: deque[_EndedJob] = deque()
        self._assigned: dict[str, tuple[object, int, ResultRef]] = {}
        self._depth = 0
        shell.events.register("pre_execute", self._before_cell)
        shell.events.register("pre_run_cell", self._before_code)
        shell.events.register("post_execute", self._after_cell)
        jobs.end_listeners.append(self._after_end)

    def close(self) -> None:
        """Stop following: assign and refresh nothing from now on."""
        self._shell.events.unregister("pre_execute", self._before_cell)
        self._shell.events.unregister("pre_run_cell", self._before_code)
        self._shell.events.unregister("post_execute", self._after_cell)
        jobs.end_listeners.remove(self._after_end)
        with self._lock:
            self._watched.clear()
            self._ended.clear()

    @property
    def has_displays(self) -> bool:
        """Return whether outputs can be updated after they were shown: in a kernel, but not in a terminal."""
        return getattr(self._shell, "kernel", None) is not None

    def show(self, job: Job, *, is_new: bool = False) -> None:
        """Show a job as the output of this cell and keep the output up to date until the job ends."""
        bundle = html.bundle_of(job, is_new=is_new)
        display_id = uuid4().hex
        self._publish(html.forms(bundle), display_id)
        if not self.has_displays:
            self._print_notes(bundle.job)
        if self.has_displays and widget.is_wanted(self._shell.user_ns):
            self._show_widget(job)
        if self.has_displays and not bundle.job.state.is_final:
            self._watch(job).displays.append(display_id)

    def _print_notes(self, view: JobView) -> None:
        """Print the notes that a card would show, except those about omitted statements, which --dry-run shows."""
        for note in view.notes if not view.state.is_final else ():
            if not is_for_page(note):
                print(f"  {note.text}")

    def _show_widget(self, job: Job) -> None:
        """Show the widget below the card, for pages without the extension, if ipywidgets is installed."""
        try:
            box = widget.widget(job)
        except ImportError:
            return
        formatter: Any = self._shell.display_formatter
        data, metadata = formatter.format(box)
        self._shell.display_pub.publish(data=data, metadata=metadata)

    def assign_later(self, job: Job, names: tuple[str, ...], *, is_new: bool = False) -> None:
        """Assign results of the job to variables once it has completed; announce it below the card.

        `is_new`: the job was just submitted, so the kernel's random state will continue from the job's end unless other
        cells use it before.
        """
        space = self._shell.user_ns
        wanted = _PendingResults(names, {name: space.get(name, _MISSING) for name in names}, None)
        wanted.streams = _streams().written() if is_new else None
        if self.has_displays:
            wanted.note = uuid4().hex
            text = f"{', '.join(names)}: will be assigned when {job.id} completes."
            self._show_note(wanted, f"{text}\nAfter a kernel restart: %dlaas attach {job.id}", is_first=True)
        self._watch(job, wanted)

    def results(self) -> dict[str, ResultRef]:
        """Return the names that are bound to a result of a job, and the result."""
        space = self._shell.user_ns
        return {name: ref for name, (value, _, ref) in self._assigned.items() if space.get(name, _MISSING) is value}

    def assign_now(self, job: Job, names: tuple[str, ...]) -> None:
        """Assign results of a completed job immediately, whatever the names are bound to."""
        note = uuid4().hex if self.has_displays else None
        wanted = _PendingResults(names, {name: self._shell.user_ns.get(name, _MISSING) for name in names}, note)
        if note is not None:
            self._show_note(wanted, "", is_first=True)
        self._fetch(job.last_view, wanted, job.follow().client)
        self._assign()

    def collect(self, job: Job) -> None:
        """Assign the results of an ended job. Only between two statements of the user, in the main thread."""
        with self._lock:
            watched = self._watched.get(job.id)
        if watched is not None:
            self._end(watched, job.last_view)
        self._assign()

    def collect_ended(self, names: Collection[str] | None = None) -> None:
        """Assign the results of all jobs that have ended by now; with `names`, only where one of these is awaited."""
        with self._lock:
            awaited = [
                one
                for one in self._watched.values()
                if one.wanted and (names is None or any(not {*wanted.names}.isdisjoint(names) for wanted in one.wanted))
            ]
        for watched in awaited:
            with suppress(DlaasError):
                view = watched.job.follow().client.without_start().job(watched.job.id)
                if view.state.is_final:
                    self._end(watched, view)
        self._assign()

    # ------------------------------------------------------------------------------------------------ in the thread

    def _watch(self, job: Job, wanted: _PendingResults | None = None) -> _FollowedJob:
        with self._lock:
            watched = self._watched.get(job.id)
            is_new = watched is None
            if watched is None:
                watched = self._watched[job.id] = _FollowedJob(Job(job.last_view, job.follow().client))
            if wanted is not None:
                watched.wanted.append(wanted)
        if is_new:
            threading.Thread(target=self._follow, args=(watched,), name=f"dlaas-{job.id}", daemon=True).start()
        return watched

    def _follow(self, watched: _FollowedJob) -> None:
        """Wait for the end of a job, across restarts of the engine."""
        job = watched.job
        view = job.last_view
        client = job.follow().client
        pause_s = 1.0
        while self._is_watched(watched) and not view.state.is_final:
            cursor = Cursor(row=view.row)
            reader = Follower(client.without_start(), job.id, cursor, ("view",), patience_s=_PATIENCE_S, view=view)
            try:
                for _ in reader.once():
                    pass
                view, pause_s = reader.view or view, 1.0
            except NotFound:  # the record was deleted: the last output stays
                break
            except DlaasError:
                time.sleep(pause_s)
                pause_s = min(_RETRY_PAUSE_MAX_S, pause_s * 2)
                if _has_pool(job):
                    with suppress(DlaasError):
                        view = client.job(job.id)  # starts an engine if none has answered for a while
        if view.state.is_final:
            self._end(watched, view)
            self._schedule()

    def _is_watched(self, watched: _FollowedJob) -> bool:
        with self._lock:
            return self._watched.get(watched.job.id) is watched

    def _end(self, watched: _FollowedJob, view: JobView) -> None:
        """Handle the end of a job exactly once; return when it is handled, here or in another thread."""
        with self._lock:
            is_first, watched.has_ended = not watched.has_ended, True
        if not is_first:
            watched.done.wait(_FETCH_S)
            return
        try:
            self._finish(watched, view)
        finally:
            watched.done.set()
            with self._lock:
                if self._watched.get(watched.job.id) is watched:
                    del self._watched[watched.job.id]

    def _finish(self, watched: _FollowedJob, view: JobView) -> None:
        """Refresh the outputs of an ended job and fetch its results."""
        client = watched.job.follow().client
        if watched.displays:
            forms = html.mimebundle(Job(view, client))
            for display_id in watched.displays:
                self._publish(forms, display_id, is_update=True)
        for wanted in watched.wanted:
            self._fetch(view, wanted, client)

    def _fetch(self, view: JobView, wanted: _PendingResults, client: Client) -> None:
        """Fetch the bytes of results, which are loaded later in the main thread."""
        raw: dict[str, bytes] = {}
        errors: dict[str, str] = {}
        for name in wanted.names if view.state is State.COMPLETED else ():
            if name in raw:
                continue
            try:
                raw[name] = client.result(view.id, name)
            except DlaasError as error:
                errors[name] = _why_not_stored(client, view.id, name) or str(error)
            else:
                raw |= dict.fromkeys(set(_results().names_in(raw[name])) & {*wanted.names}, raw[name])
        streams = None
        if raw and wanted.streams is not None:
            with suppress(DlaasError):  # a job of an earlier release has none
                streams = client.artifact(view.id, f"results/{_results().STREAMS}").decode()
        versions = partial(_results().versions_of, client, view.id)
        self._ended.append(_EndedJob(view, wanted, raw, errors, lambda: client.source(view.id)[0], streams, versions))

    def _schedule(self) -> None:
        """Schedule `_when_idle` in the main thread, between cells. A terminal has no event loop for this."""
        loop = getattr(getattr(self._shell, "kernel", None), "io_loop", None)
        if loop is not None:
            loop.add_callback(self._when_idle)

    # ------------------------------------------------------------------------------------------- in the main thread

    def _before_cell(self) -> None:
        self._when_idle()
        self._depth += 1

    def _before_code(self, info: ExecutionInfo) -> None:
        """Assign available results before a cell that uses their names: the job may have ended just now."""
        if self._depth > 1:
            return
        self.collect_ended(set(re.findall(r"[^\W\d]\w*", info.raw_cell or "")) if self._watched else ())

    def _after_end(self, job: Job) -> None:
        """Assign results when the running cell learns that a job has ended, so that its next line can use them."""
        if threading.current_thread() is threading.main_thread():
            self.collect(job)

    def _after_cell(self) -> None:
        self._depth = max(0, self._depth - 1)
        self._when_idle()

    def _when_idle(self) -> None:
        if self._depth == 0:  # a cell with `await` lets the loop run in its middle
            self._assign()

    def _assign(self) -> None:
        while self._ended:
            ended = self._ended.popleft()
            if ended.view.state is not State.COMPLETED:
                names = ", ".join(ended.wanted.names)
                how = "was cancelled" if ended.view.state is State.CANCELLED else "failed"
                self._show_note(ended.wanted, f"{names}: not assigned because {ended.view.id} {how}.")
                continue
            self._show_note(ended.wanted, "\n".join(self._assign_all(ended)))

    def _assign_all(self, ended: _EndedJob) -> Iterator[str]:
        """Assign the fetched results, one object graph at a time; yield the messages to show."""
        names = ended.wanted.names
        reasons_left = {name: ended.errors.get(name) or self._reason_unassigned(name, ended) for name in names}
        graphs: dict[int, list[str]] = {}
        for name in names:
            if not reasons_left[name]:
                graphs.setdefault(id(ended.raw[name]), []).append(name)
        notes: list[str] = []
        for data in list(ended.raw.values())[:1]:
            self.earlier.note_changed(ended.view.id, _results().changed_in(data))
        for group in graphs.values():
            try:
                notes += self._assign_graph(group, ended)
            except Exception as error:  # noqa: BLE001 - loading runs the user's own classes, which may raise anything
                reasons_left.update(dict.fromkeys(group, _why_not_loaded(ended.view.id, group[0], error)))
                self.earlier.note_unstored(ended.view.id, group)
        done = [name for name in names if not reasons_left[name]]
        if done:
            self._continue_streams(ended)
            yield f"{', '.join(done)}: assigned from {ended.view.id}."
            if lost := self.earlier.not_returned(ended.view.id, self._shell.user_ns):
                yield f"Changed in the job, but not returned with -o: {', '.join(lost)}."
        yield from (f"{name}: {reasons_left[name]}" for name in names if reasons_left[name])
        yield from notes

    @staticmethod
    def _continue_streams(ended: _EndedJob) -> None:
        """Continue the kernel's random state after the job's, unless other cells have used it since."""
        if ended.streams is not None and ended.wanted.streams == _streams().written():
            _streams().put_written(ended.streams)

    def _reason_unassigned(self, name: str, ended: _EndedJob) -> str:
        """Return why a name is left unchanged, or "" if it may be assigned."""
        job, now = ended.view, self._shell.user_ns.get(name, _MISSING)
        assigned = self._assigned.get(name)
        is_assigned = assigned is not None and assigned[0] is now
        if is_assigned and assigned is not None and assigned[1] > job.number:
            return (
                f"left unchanged: it holds the newer result of {assigned[2].job}; job.result({name!r}) loads this one."
            )
        if not is_assigned and now is not ended.wanted.before[name]:
            return f'left unchanged: it was rebound after the submission; dlaas.result("{job.id}", "{name}") loads it.'
        return ""

    def _assign_graph(self, names: Sequence[str], ended: _EndedJob) -> Iterator[str]:
        """Load the names of one object graph, into the existing objects if they fit, else as new ones."""
        space, job = self._shell.user_ns, ended.view
        before = {name: space[name] for name in names if name in space}
        placement = _results().ResultPlacement()
        with _preserved_random_state():
            loaded = _results().load_graph(
                names[0], ended.raw[names[0]], ended.source, _refuse_edited, ended.versions, placement
            )
            changed, rebound, assigned = _bindings(ended, before)
            into = {name: value for name, value in before.items() if name not in rebound}
            attributes = _shared_objects().ClassAttributes(loaded)
            into |= attributes.values()
            values = {name: loaded[name] for name in (*names, *attributes.keys)}
            origins = _results().origins_in(ended.raw[names[0]])
            restored = _restore().restore(
                values, into, changed=changed, bound=ended.wanted.names, assigned=assigned, origins=origins
            )
        del loaded, values
        placement.release()
        attributes.bind(restored.values)
        space.update((name, restored.values[name]) for name in names)
        users = {name: value for name, value in list(space.items()) if name not in self._shell.user_ns_hidden}
        parts = frozenset(name for name, value in users.items() if id(value) in restored.loaded and name[:1] != "_")
        for name in names:
            is_kept = name in restored.kept
            ref = ResultRef(job.id, name, *self._place(), is_restored=is_kept, parts=parts.difference(names))
            self._assigned[name] = (space[name], job.number, ref)
        has_gradients = _results().has_gradients(ended.raw[names[0]])
        loaded_ids = restored.loaded | attributes.loaded
        self.earlier.note_loaded(job.id, space, loaded_ids, has_gradients=has_gradients is True)
        stale = {name: value for name, value in before.items() if space[name] is not value}
        reasons = dict.fromkeys(stale, restored.reason) | dict.fromkeys(rebound, "the training cell rebinds it")
        notes = _stale_references(users, stale, reasons)
        moved = [f"{', '.join(names)}: on the CPU, since {placement.reason}."] if placement.reason else []
        if has_gradients is False:
            moved.append(f"{', '.join(names)}: without gradients (`.grad`), which are returned up to 64 MB.")
        return chain(moved, restored.notes, notes)

    def _place(self) -> tuple[int, int | None]:
        """Return the count of the running or last cell, and its running line; None for the line between cells."""
        line, frame = None, sys._getframe() if self._depth else None
        while frame is not None:
            if frame.f_globals is self._shell.user_global_ns:
                line = frame.f_lineno  # the outermost one is the cell, the others are functions that it calls
            frame = frame.f_back
        return newest_cell(self._shell), line

    # ------------------------------------------------------------------------------------------------------- showing

    def _show_note(self, wanted: _PendingResults, text: str, *, is_first: bool = False) -> None:
        if wanted.note is not None:
            self._publish({"text/plain": text}, wanted.note, is_update=not is_first)
        else:
            print(text)

    def _publish(self, forms: dict[str, Any], display_id: str, *, is_update: bool = False) -> None:
        if not self.has_displays:
            if not is_update:
                print(forms["text/plain"])
            return
        self._shell.display_pub.publish(data=forms, metadata={}, transient={"display_id": display_id}, update=is_update)


def newest_cell(shell: InteractiveShell) -> int:
    """Return the count of the running or last cell. IPython's own counter is one ahead, in some versions earlier."""
    history = shell.history_manager
    return shell.execution_count if history is None else len(history.input_hist_raw) - 1


def _results() -> Any:
    return importlib.import_module("jupyter_dlaas.transfer.results")


def _shared_objects() -> Any:
    return importlib.import_module("jupyter_dlaas.transfer.shared_objects")


def _restore() -> Any:
    return importlib.import_module("jupyter_dlaas.transfer.result_restore")


def _bindings(ended: _EndedJob, before: Mapping[str, object]) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return, from the training cell's text, the containers that it only changes, and the names that it rebinds.

    The latter are the models that it replaces by new ones, and all names that it binds to values.
    """
    containers = {name for name, value in before.items() if _restore().can_be_filled(value)}
    models = {name: value for name, value in before.items() if trained_in(value, _OBJECTS_MAX)}
    if (containers or models) and ended.source is not None:
        with suppress(DlaasError):
            module: Any = importlib.import_module("jupyter_dlaas.transfer.class_definitions")
            source = ended.source()
            changed = module.changed_names(source, containers)
            return changed, module.rebound_names(source, models), module.assigned_names(source)
    return frozenset(), frozenset(), frozenset()


@contextmanager
def _preserved_random_state() -> Iterator[None]:
    """Preserve the kernel's random state, though some classes draw random numbers when they load."""
    streams = _streams()
    found = streams.snapshot()
    try:
        yield
    finally:
        streams.put_back(found)


def _streams() -> Any:
    return importlib.import_module("jupyter_dlaas.transfer.rng_state")


class _Edited(Exception):
    """Error of a result whose class the notebook has edited since the submission."""


def _refuse_edited(names: frozenset[str]) -> None:
    raise _Edited(", ".join(f"`{name}`" for name in sorted(names)))


def _why_not_loaded(job: str, name: str, error: Exception) -> str:
    again = f'dlaas.result("{job}", "{name}")'
    if isinstance(error, _Edited) and "." in str(error):  # a class of a module
        return (
            f"left unchanged: {error} differs from the job's version (the file was edited or reloaded). "
            f"{again} loads it with the class of this kernel; importlib.reload loads the file's version."
        )
    if isinstance(error, _Edited):
        return (
            f"left unchanged: {error} was edited after the submission. {again} loads it with the job's version of the "
            "class. Or run the training cell again."
        )
    if isinstance(error, AttributeError) and (missing := _MISSING_NAME.search(str(error))):
        return (
            f"not loaded: it needs `{missing[1]}`, which exists only in the job, where the training cell created it. "
            f"Define `{missing[1]}` in a separate cell and run it; then {again} loads it."
        )
    return f"not loaded ({type(error).__name__}: {error}); retry with {again}."


def _stale_references(
    users: Mapping[str, object], stale: Mapping[str, object], reasons: Mapping[str, str]
) -> Iterator[str]:
    """Yield a message per variable that still refers to objects which a result has replaced.

    These are models and optimisers; if the result did not fit, also the other parts of its objects.
    """
    held = {name: trained_in(value, _OBJECTS_MAX) for name, value in stale.items()}
    for name in [name for name in held if reasons[name]]:
        held[name] |= {id(part) for part in (_shared_objects().parts_of(name, stale[name]) or {}).values()}
    if not any(held.values()):
        return
    others = {
        name: trained_in(_fields_of_class(value), _OBJECTS_MAX) | {id(value)}
        for name, value in users.items()
        if name not in stale and not name.startswith("_")
    }
    for name, own_parts in held.items():
        still = sorted(other for other, other_parts in others.items() if not own_parts.isdisjoint(other_parts))
        if still:
            why = f" ({reasons[name]})" if reasons[name] else ""
            yield (
                f"{name} is now a new object{why}; {', '.join(f'`{other}`' for other in still)} still "
                f"refer{'s' if len(still) == 1 else ''} to the old one. Run the cells that create "
                f"{'it' if len(still) == 1 else 'them'} again."
            )


def _fields_of_class(value: object) -> object:
    """Return the attributes of a class of the notebook, such as a shared model; return other values unchanged."""
    return dict(vars(value)) if isinstance(value, type) and value.__module__ == "__main__" else value


def _why_not_stored(client: Client, job: str, name: str) -> str:
    """Return the learner's message about a value that it could not write, or ""."""
    try:
        text = str(client.log(job, offset=-_LOG_TAIL_BYTES)["text"])
    except DlaasError:
        return ""
    # The second form is that of earlier versions.
    line = rf"^\[{re.escape(name)} could not be (?:returned|brought back): (.*)\]$"
    reports = re.findall(line, text, re.MULTILINE)
    return f"not returned: {reports[-1]}." if reports else ""


def _has_pool(job: Job) -> bool:
    """Return whether the pool's directory still exists; no engine is started for a pool that was removed."""
    endpoints = job.follow().client.endpoints
    return all(not isinstance(endpoint, SocketEndpoint) or endpoint.directory.is_dir() for endpoint in endpoints)
