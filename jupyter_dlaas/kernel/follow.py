"""What a kernel does until its jobs are over: keeps their outputs true, and brings results back into the namespace.

Each unfinished job that was shown here has one daemon thread in a long poll. When the job ends, its outputs are
refreshed, so that the saved notebook tells the truth, and the bytes of the wanted results are fetched. They are loaded
and assigned in the main thread, never in the middle of a cell: at once when the kernel is idle, else when the running
cell has ended; in a terminal, which has no loop of ours, before the next cell. A name that was bound anew after the
submit is left as it is.
"""

from __future__ import annotations

import importlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from jupyter_dlaas.analysis.model import ResultRef
from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.client.discovery import SocketDoor
from jupyter_dlaas.client.follow import Follower
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.display import html, widget
from jupyter_dlaas.suggest.advice_text import is_for_page
from jupyter_dlaas.transfer.object_traversal import trained_in
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.protocol import Cursor, JobView, NotFound, State

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionInfo, InteractiveShell

__all__ = ["Waiter", "newest_cell"]

_MISSING: Final = object()
_NOT_HERE: Final = re.compile(r"Can.t get attribute .(\w+). on <module .__main__.")
_LAST_WORDS_BYTES: Final = 2**14
_PATIENCE_S: Final = 10.0
_FETCH_S: Final = 600.0
_AGAIN_S: Final = 60.0
_SEEN_MAX: Final = 2000
"""Objects of a variable that are looked through for weights."""


@dataclass(slots=True)
class _Wanted:
    """Names that a job brings back here, with what they were bound to at submit."""

    names: tuple[str, ...]
    before: Mapping[str, object]
    note: str | None
    """The display that tells what became of them."""
    streams: str | None = None
    """Where the kernel's random streams were at submit (`streams.written`); None: it is no submit."""


@dataclass(slots=True)
class _Watched:
    """A job that is waited for."""

    job: Job
    displays: list[str] = field(default_factory=list)
    wanted: list[_Wanted] = field(default_factory=list)
    is_over: bool = False
    """Somebody has seen its end and does what is to be done then."""
    done: threading.Event = field(default_factory=threading.Event)
    """That was done, but for the assigning."""


@dataclass(frozen=True, slots=True)
class _Arrived:
    """What is to be done in the main thread for a job that is over."""

    view: JobView
    wanted: _Wanted
    raw: Mapping[str, bytes] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    source: Callable[[], str] | None = None
    """Asks for the job's program."""
    streams: str | None = None
    """Where its random streams were at its end."""
    versions: Callable[[], Mapping[str, Any]] | None = None
    """Asks for what it had of own modules."""


class Waiter:
    """One per shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._arrived: deque[_Arrived] = deque()
        self._assigned: dict[str, tuple[object, int, ResultRef]] = {}
        self._depth = 0
        shell.events.register("pre_execute", self._before_cell)
        shell.events.register("pre_run_cell", self._before_code)
        shell.events.register("post_execute", self._after_cell)

    def close(self) -> None:
        """Stop: nothing is assigned or refreshed from now on."""
        self._shell.events.unregister("pre_execute", self._before_cell)
        self._shell.events.unregister("pre_run_cell", self._before_code)
        self._shell.events.unregister("post_execute", self._after_cell)
        with self._lock:
            self._watched.clear()
            self._arrived.clear()

    @property
    def has_displays(self) -> bool:
        """True in a kernel, where an output can be changed after it was shown; a terminal only goes on."""
        return getattr(self._shell, "kernel", None) is not None

    def show(self, job: Job, *, is_new: bool = False) -> None:
        """Show a job as this cell's output, and keep that output true until the job is over."""
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
        """What a card would tell beside its job. What was left out, only --dry-run tells in a terminal."""
        for note in view.notes if not view.state.is_final else ():
            if not is_for_page(note):
                print(f"  {note.text}")

    def _show_widget(self, job: Job) -> None:
        """Beside the plain form, where the page has no card: the widget, if its library is there."""
        try:
            box = widget.widget(job)
        except ImportError:
            return
        formatter: Any = self._shell.display_formatter
        data, metadata = formatter.format(box)
        self._shell.display_pub.publish(data=data, metadata=metadata)

    def bring(self, job: Job, names: tuple[str, ...], *, is_new: bool = False) -> None:
        """Assign these results of the job here when it has completed; say so below the card.

        `is_new`: it was just submitted, and the kernel's random streams go on from its end unless they are used before.
        """
        space = self._shell.user_ns
        wanted = _Wanted(names, {name: space.get(name, _MISSING) for name in names}, None)
        wanted.streams = _streams().written() if is_new else None
        if self.has_displays:
            wanted.note = uuid4().hex
            text = f"{', '.join(names)}: assigned in this kernel when {job.id} has completed."
            self._say(wanted, f"{text} Later: %dlaas attach {job.id}", is_first=True)
        self._watch(job, wanted)

    def results(self) -> dict[str, ResultRef]:
        """The names that are bound to what a job brought back, and to which job's."""
        space = self._shell.user_ns
        return {name: ref for name, (value, _, ref) in self._assigned.items() if space.get(name, _MISSING) is value}

    def bring_now(self, job: Job, names: tuple[str, ...]) -> None:
        """Assign these results of a completed job at once, whatever the names are bound to."""
        note = uuid4().hex if self.has_displays else None
        wanted = _Wanted(names, {name: self._shell.user_ns.get(name, _MISSING) for name in names}, note)
        if note is not None:
            self._say(wanted, "", is_first=True)
        self._fetch(job.last_view, wanted, job.follow().client)
        self._assign()

    def collect(self, job: Job) -> None:
        """Assign what a job that is over has brought. For the magics, which run between the user's statements."""
        with self._lock:
            watched = self._watched.get(job.id)
        if watched is not None:
            self._end(watched, job.last_view)
        self._assign()

    # ------------------------------------------------------------------------------------------------ in the thread

    def _watch(self, job: Job, wanted: _Wanted | None = None) -> _Watched:
        with self._lock:
            watched = self._watched.get(job.id)
            is_new = watched is None
            if watched is None:
                watched = self._watched[job.id] = _Watched(Job(job.last_view, job.follow().client))
            if wanted is not None:
                watched.wanted.append(wanted)
        if is_new:
            threading.Thread(target=self._follow, args=(watched,), name=f"dlaas-{job.id}", daemon=True).start()
        return watched

    def _follow(self, watched: _Watched) -> None:
        """Wait for the end of a job, whatever restarts in between."""
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
                pause_s = min(_AGAIN_S, pause_s * 2)
                if _has_pool(job):
                    with suppress(DlaasError):
                        view = client.job(job.id)  # starts an engine, where none was found for a while
        if view.state.is_final:
            self._end(watched, view)
            self._schedule()

    def _is_watched(self, watched: _Watched) -> bool:
        with self._lock:
            return self._watched.get(watched.job.id) is watched

    def _end(self, watched: _Watched, view: JobView) -> None:
        """See to a job that is over, once; returns when that is done, here or in another thread."""
        with self._lock:
            is_mine, watched.is_over = not watched.is_over, True
        if not is_mine:
            watched.done.wait(_FETCH_S)
            return
        try:
            self._over(watched, view)
        finally:
            watched.done.set()
            with self._lock:
                if self._watched.get(watched.job.id) is watched:
                    del self._watched[watched.job.id]

    def _over(self, watched: _Watched, view: JobView) -> None:
        """Refresh the outputs of a job that has ended, and fetch what it brings back."""
        client = watched.job.follow().client
        if watched.displays:
            forms = html.mimebundle(Job(view, client))
            for display_id in watched.displays:
                self._publish(forms, display_id, is_update=True)
        for wanted in watched.wanted:
            self._fetch(view, wanted, client)

    def _fetch(self, view: JobView, wanted: _Wanted, client: Client) -> None:
        """Get the bytes of results; they are loaded later, in the main thread."""
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
        self._arrived.append(_Arrived(view, wanted, raw, errors, lambda: client.source(view.id)[0], streams, versions))

    def _schedule(self) -> None:
        """Have `_when_idle` called in the main thread, between cells. A terminal has no loop to ask."""
        loop = getattr(getattr(self._shell, "kernel", None), "io_loop", None)
        if loop is not None:
            loop.add_callback(self._when_idle)

    # ------------------------------------------------------------------------------------------- in the main thread

    def _before_cell(self) -> None:
        self._when_idle()
        self._depth += 1

    def _before_code(self, info: ExecutionInfo) -> None:
        """A cell that uses a name does not run ahead of a result that is there: the job may have ended just now."""
        if self._depth > 1:
            return
        words = set(re.findall(r"[^\W\d]\w*", info.raw_cell or "")) if self._watched else set()
        with self._lock:
            used = [one for one in self._watched.values() if any(words & {*wanted.names} for wanted in one.wanted)]
        for watched in used:
            with suppress(DlaasError):
                view = watched.job.follow().client.without_start().job(watched.job.id)
                if view.state.is_final:
                    self._end(watched, view)
        self._assign()

    def _after_cell(self) -> None:
        self._depth = max(0, self._depth - 1)
        self._when_idle()

    def _when_idle(self) -> None:
        if self._depth == 0:  # a cell with `await` lets the loop run in its middle
            self._assign()

    def _assign(self) -> None:
        while self._arrived:
            arrived = self._arrived.popleft()
            if arrived.view.state is not State.COMPLETED:
                names = ", ".join(arrived.wanted.names)
                self._say(arrived.wanted, f"{names}: not assigned, since {arrived.view.id} is {arrived.view.state}.")
                continue
            self._say(arrived.wanted, "\n".join(self._assign_all(arrived)))

    def _assign_all(self, arrived: _Arrived) -> Iterator[str]:
        """Assign what has arrived, a graph of objects at a time; what is to be said of it."""
        names = arrived.wanted.names
        whys = {name: arrived.errors.get(name) or self._why_left(name, arrived) for name in names}
        graphs: dict[int, list[str]] = {}
        for name in names:
            if not whys[name]:
                graphs.setdefault(id(arrived.raw[name]), []).append(name)
        notes: list[str] = []
        for group in graphs.values():
            try:
                notes += self._assign_graph(group, arrived)
            except Exception as error:  # noqa: BLE001 - loading runs the user's own classes, which may raise anything
                whys.update(dict.fromkeys(group, _why_not_loaded(arrived.view.id, group[0], error)))
        done = [name for name in names if not whys[name]]
        if done:
            self._continue_streams(arrived)
            yield f"{', '.join(done)}: assigned here from {arrived.view.id}."
        yield from (f"{name}: {whys[name]}" for name in names if whys[name])
        yield from notes

    @staticmethod
    def _continue_streams(arrived: _Arrived) -> None:
        """Let random numbers go on here as after the cell itself, unless other cells have drawn some since."""
        if arrived.streams is not None and arrived.wanted.streams == _streams().written():
            _streams().put_written(arrived.streams)

    def _why_left(self, name: str, arrived: _Arrived) -> str:
        """Why a name is left as it is; "" where it is not."""
        job, now = arrived.view, self._shell.user_ns.get(name, _MISSING)
        ours = self._assigned.get(name)
        is_ours = ours is not None and ours[0] is now
        if is_ours and ours is not None and ours[1] > job.number:
            return f"left as {ours[2].job} brought it, which is newer; job.result({name!r}) loads this one."
        if not is_ours and now is not arrived.wanted.before[name]:
            return (
                f'left as it is, since it was bound anew after the submit; dlaas.result("{job.id}", "{name}") loads it.'
            )
        return ""

    def _assign_graph(self, names: Sequence[str], arrived: _Arrived) -> Iterator[str]:
        """Load names that are one graph: into the objects that are there where these fit, else as new ones."""
        space, job = self._shell.user_ns, arrived.view
        before = {name: space[name] for name in names if name in space}
        with _same_chance():
            loaded = _results().load_graph(
                names[0], arrived.raw[names[0]], arrived.source, _refuse_edited, arrived.versions
            )
            changed, anew = _bindings(arrived, before)
            into = {name: value for name, value in before.items() if name not in anew}
            restored = _restore().restore({name: loaded[name] for name in names}, into, changed=changed)
        for name in names:
            value = space[name] = restored.values[name]
            ref = ResultRef(job.id, name, newest_cell(self._shell), is_restored=name in restored.kept)
            self._assigned[name] = (value, job.number, ref)
        stale = {name: value for name, value in before.items() if space[name] is not value}
        users = {name: value for name, value in list(space.items()) if name not in self._shell.user_ns_hidden}
        reasons = dict.fromkeys(stale, restored.reason) | dict.fromkeys(anew, "the training cell binds it anew")
        return _said_of_stale(users, stale, reasons)

    # ------------------------------------------------------------------------------------------------------- showing

    def _say(self, wanted: _Wanted, text: str, *, is_first: bool = False) -> None:
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
    """The count of the cell that runs, or ran last; IPython's own counter is ahead by one, in some versions earlier."""
    history = shell.history_manager
    return shell.execution_count if history is None else len(history.input_hist_raw) - 1


def _results() -> Any:
    return importlib.import_module("jupyter_dlaas.transfer.results")


def _restore() -> Any:
    return importlib.import_module("jupyter_dlaas.transfer.result_restore")


def _bindings(arrived: _Arrived, before: Mapping[str, object]) -> tuple[frozenset[str], frozenset[str]]:
    """What the training cell's text says: names of containers that it only changes, and names that it binds anew."""
    containers = {name for name, value in before.items() if _restore().can_be_filled(value)}
    models = {name for name, value in before.items() if trained_in(value, _SEEN_MAX)}
    if (containers or models) and arrived.source is not None:
        with suppress(DlaasError):
            module: Any = importlib.import_module("jupyter_dlaas.transfer.class_definitions")
            source = arrived.source()
            return module.changed_names(source, containers), module.bound_anew(source, models)
    return frozenset(), frozenset()


@contextmanager
def _same_chance() -> Iterator[None]:
    """Leave the kernel's random streams where they are, though some classes draw numbers when they load."""
    streams = _streams()
    found = streams.snapshot()
    try:
        yield
    finally:
        streams.put_back(found)


def _streams() -> Any:
    return importlib.import_module("jupyter_dlaas.transfer.rng_state")


class _Edited(Exception):
    """A result is of a class that the notebook has edited since."""


def _refuse_edited(names: frozenset[str]) -> None:
    raise _Edited(", ".join(f"`{name}`" for name in sorted(names)))


def _why_not_loaded(job: str, name: str, error: Exception) -> str:
    again = f'dlaas.result("{job}", "{name}")'
    if isinstance(error, _Edited) and "." in str(error):  # a class of a module
        return (
            f"left as it is, since {error} is another version here than in the job: the file was edited, or reloaded. "
            f"{again} loads it into the version that is here; importlib.reload takes the file's."
        )
    if isinstance(error, _Edited):
        return (
            f"left as it is, since {error} was edited after the submit. {again} loads it with the class as the job had "
            "it; or run the training cell again."
        )
    if isinstance(error, AttributeError) and (missing := _NOT_HERE.search(str(error))):
        return (
            f"not loaded: it is made of `{missing[1]}`, which the training cell made while it ran, in the job. "
            f"Define `{missing[1]}` in a cell of its own and run it; then {again} loads it."
        )
    return f"not loaded ({type(error).__name__}: {error}); {again} tries again."


def _said_of_stale(
    users: Mapping[str, object], stale: Mapping[str, object], reasons: Mapping[str, str]
) -> Iterator[str]:
    """Name the variables that still refer to objects which a result has replaced."""
    held = {name: found for name, value in stale.items() if (found := trained_in(value, _SEEN_MAX))}
    if not held:
        return
    others = {
        name: trained_in(_fields_of_class(value), _SEEN_MAX)
        for name, value in users.items()
        if name not in stale and not name.startswith("_")
    }
    for name, mine in held.items():
        still = sorted(other for other, theirs in others.items() if not mine.isdisjoint(theirs))
        if still:
            why = f" ({reasons[name]})" if reasons[name] else ""
            yield (
                f"{name}: this is another object than before{why}; {', '.join(f'`{one}`' for one in still)} still "
                f"refer{'s' if len(still) == 1 else ''} to the old one. Run the cells that make "
                f"{'it' if len(still) == 1 else 'them'} again."
            )


def _fields_of_class(value: object) -> object:
    """What a class of the notebook holds, such as a model that all of its objects use; other values as they are."""
    return dict(vars(value)) if isinstance(value, type) and value.__module__ == "__main__" else value


def _why_not_stored(client: Client, job: str, name: str) -> str:
    """What the learner said at its end about a value that it could not write; "" for nothing."""
    try:
        text = str(client.log(job, offset=-_LAST_WORDS_BYTES)["text"])
    except DlaasError:
        return ""
    said = re.findall(rf"^\[{re.escape(name)} could not be brought back: (.*)\]$", text, re.MULTILINE)
    return f"not brought back: {said[-1]}." if said else ""


def _has_pool(job: Job) -> bool:
    """False once the pool's directory is gone: no engine is started for a pool that somebody removed."""
    doors = job.follow().client.doors
    return all(not isinstance(one, SocketDoor) or one.directory.is_dir() for one in doors)
