"""`%%train` and `%dlaas`: each reads its line and calls the public API, so plain Python can do the same."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar
from weakref import WeakKeyDictionary

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from jupyter_dlaas.api import jobs
from jupyter_dlaas.api.jobs import Job, JobFailed
from jupyter_dlaas.cli import main
from jupyter_dlaas.cli import terminal as show
from jupyter_dlaas.client.follow import Follower, LogLines
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.kernel import submit
from jupyter_dlaas.kernel.follow import Waiter, newest_cell
from jupyter_dlaas.kernel.options import NotDone, parse, train_options
from jupyter_dlaas.kernel.prewarm import warm_soon
from jupyter_dlaas.kernel.recorder import Recorder
from jupyter_dlaas.kernel.submit import Cell
from jupyter_dlaas.suggest.advice_text import suggestion_html, suggestion_text
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.protocol import State

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionInfo, InteractiveShell

__all__ = ["DlaasMagics", "load", "unload"]

F = TypeVar("F", bound=Callable[..., Any])
NAME: Final = "dlaas"
VERBS: Final = (
    *("jobs", "pool", "queue", "logs", "scale", "halt", "resume", "cancel", "checkpoint", "retry", "attach"),
    *("why", "story", "source", "report", "cordon", "uncordon", "drain"),
)
_USERS_TEXT: Final = frozenset({"logs", "source", "report"})
"""Verbs that print what the user's program is or said: shown as it stands."""
_OF_JOB: Final = frozenset(VERBS) - {"jobs", "pool", "queue", "cordon", "uncordon", "drain"}


def _dlaas_words(function: F) -> F:
    """What may stand on the line of `%dlaas`, for its help."""
    for one in (
        argument("rest", nargs="*", metavar="NAME", help="a handle (resnet-48), or a name: its newest job"),
        argument("verb", nargs="?", metavar="VERB", help=" | ".join(VERBS)),
    ):
        function = one(function)
    return function


def _parser(magic: Any) -> argparse.ArgumentParser:
    """What IPython made of a magic's arguments."""
    parser: argparse.ArgumentParser = magic.parser
    return parser


@magics_class
class DlaasMagics(Magics):
    """The two magics of one shell, with what they must remember of it."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell=shell)
        self._kernel = shell
        self.recorder = Recorder(shell)
        self.waiter = Waiter(shell)
        self._running: ExecutionInfo | None = None
        self._shown: set[int] = set()
        shell.events.register("pre_run_cell", self._before)

    def close(self) -> None:
        """Stop listening to the shell."""
        self._kernel.events.unregister("pre_run_cell", self._before)
        self.recorder.close()
        self.waiter.close()

    def _before(self, info: ExecutionInfo) -> None:
        self._running = info
        self._shown.clear()

    # ------------------------------------------------------------------------------------------------------- %%train

    @cell_magic
    @magic_arguments("%train")  # type: ignore[untyped-decorator]
    @train_options
    def train(self, line: str, cell: str) -> Job | None:
        """Train this cell as a job of the pool, which goes on whatever happens to the kernel, the tab or the server.

        The job gets what the cell needs of the cells that ran before it. It returns at once with a live job:
        `dlaas.job(NAME)` finds it again, `%dlaas jobs` shows all. `--gpus 1:4` lets it grow and shrink.
        """
        here = self._cell(cell)
        asked = parse(_parser(self.train), line, where=submit.where_of(here))
        cells = self.recorder.cells()
        suggestion = submit.suggestion_of(cells, here, asked)
        if asked.is_suggestion:
            forms = {"text/plain": suggestion_text(suggestion), "text/html": suggestion_html(suggestion)}
            self._kernel.display_pub.publish(data=forms)
            return None
        results = self.waiter.results()
        with submit.prepared(self._kernel, cells, here, asked, results, suggestion) as ready:
            if asked.is_dry_run:
                prepared = jobs.prepare(ready.made.text, **ready.options)
                print(submit.dry_run_text(ready.made, prepared, Client()))
                return None
            job = jobs.submit(ready.made.text, **ready.options)
        self._show_now(job)
        if asked.outputs:
            self.waiter.bring(job, asked.outputs, is_new=True)
        if asked.is_waited_for:
            self._wait(job)
        return job

    def _cell(self, source: str) -> Cell:
        info = self._running
        raw = getattr(info, "raw_cell", None) or ""
        rows = raw.splitlines()
        above = next((n for n, row in enumerate(rows) if row.lstrip().startswith("%%train")), 0)
        head = "".join(f"{row}\n" for row in rows[: above + 1])
        return Cell(source, newest_cell(self._kernel), above + 2, head, self._cell_id(info))

    def _cell_id(self, info: Any) -> str | None:
        """The notebook's id of the cell, which the front end sends with the request to run it."""
        found = getattr(info, "cell_id", None)
        get_parent = getattr(self._kernel, "get_parent", None)
        if found is None and get_parent is not None:
            found = (get_parent() or {}).get("metadata", {}).get("cellId")
        return found if isinstance(found, str) and len(found) <= 200 else None

    def _show_now(self, job: Job) -> None:
        """Show the card before anything else is printed below it; a terminal shows what a cell returns in its turn."""
        if self.waiter.has_displays:
            self.waiter.show(job, is_new=True)
            self._shown.add(id(job))

    def show(self, job: Job) -> None:
        """What IPython does with a Job that a cell returns or displays."""
        if id(job) in self._shown:
            self._shown.discard(id(job))
            return
        self.waiter.show(job)

    def _wait(self, job: Job) -> None:
        """Show states and log lines here until the job is over. An interrupt detaches."""
        reader = Follower(job.follow().client, job.id)
        lines = LogLines(is_marked=job.last_view.size.max > 1)
        said = ""
        try:
            for message in reader.messages():
                if message["type"] == "job" and reader.view is not None:
                    now = show.job_text(reader.view, show.Ink())
                    if now != said:
                        print(now, flush=True)
                    said = now
                for text in lines.feed(message):
                    print(text, flush=True)
            for text in lines.rest():
                print(text, flush=True)
        except KeyboardInterrupt:
            print(f"Detached: {job.id} goes on. See it again: %dlaas attach {job.id}", flush=True)
            return
        except DlaasError as error:
            raise NotDone(f"{job.id} was submitted, but cannot be followed: {error}") from None
        over = job.view
        self.waiter.collect(job)
        if over.state is not State.COMPLETED:
            raise NotDone(*jobs.failure_text(over).splitlines()) from None

    # -------------------------------------------------------------------------------------------------------- %dlaas

    @line_magic
    @magic_arguments()  # type: ignore[untyped-decorator]
    @_dlaas_words
    def dlaas(self, line: str) -> Job | None:
        """Look after jobs and the pool, with the verbs of the command line `jupyter dlaas`.

        `%dlaas jobs`, `%dlaas logs NAME -f`, `%dlaas scale NAME 4`, `%dlaas why NAME`. `%dlaas attach NAME` shows the
        job's card here and brings its results into this notebook.
        """
        try:
            given = shlex.split(line)
        except ValueError as error:
            raise NotDone(f"%dlaas: {str(error).lower()}; close the quotes, or take them away.") from None
        if not given or given[0] not in VERBS:
            what = f"there is no verb {given[0]!r}" if given else "say what to do"
            raise NotDone(f"%dlaas: {what}. There are {', '.join(VERBS)}.")
        try:
            if given[0] == "attach":
                return self._attach(given[1:])
            _run(given)
        except JobFailed as error:
            raise NotDone(*str(error).splitlines()) from None
        except DlaasError as error:
            raise NotDone(f"%dlaas {given[0]}: {_here(str(error))}") from None
        return None

    def _attach(self, given: list[str]) -> Job:
        """Show a job here, and assign what it was to bring back: now if it has completed, else when it has."""
        if len(given) != 1:
            raise NotDone("%dlaas attach: name one job, as in %dlaas attach resnet-48.")
        job = jobs.job(given[0])
        self._show_now(job)
        names = job.last_view.outputs
        if names and not job.last_view.state.is_final:
            self.waiter.bring(job, names)
        elif names and job.last_view.state is State.COMPLETED:
            self.waiter.bring_now(job, names)
        return job


def _run(given: list[str]) -> None:
    """Run a verb as the command line does, with its words."""
    out: Any = sys.stdout if given[0] in _USERS_TEXT else _Here(sys.stdout)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(_Said()) as said:
        try:
            code = main.main(given)
        except SystemExit as end:  # argparse: wrong usage, or --help
            code = int(end.code or 0)
    if code == main.DETACHED:
        print(_here(said.text).strip())
    elif code:
        wrong = _here(said.text).removeprefix("dlaas: ").strip()
        raise NotDone(wrong.splitlines()[-1].replace(": error:", ":") if ": error:" in wrong else wrong)


def _here(text: str) -> str:
    """Advice for a terminal as one types it in a notebook."""
    return re.sub(r"\b(?:usage: )?jupyter dlaas\b", "%dlaas", text)


class _Here:
    """Standard output whose advice is for a notebook."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_here(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Said:
    """Standard error, kept: what was wrong becomes the cell's error."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return False


# ------------------------------------------------------------------------------------------------------ completion


def _completions(parser: Any) -> Any:
    """Completes the options of `%%train`."""

    def complete(_shell: Any, event: Any) -> list[str]:
        options = [one for one in parser._option_string_actions if one.startswith("--")]
        return [one for one in options if one.startswith(event.symbol)] if event.symbol.startswith("-") else []

    return complete


def _complete_verb(_shell: Any, event: Any) -> list[str]:
    """Completes verbs, and after those the names of jobs."""
    before = event.text_until_cursor.split()
    has_started_next = event.text_until_cursor.endswith(" ")
    place = len(before) - (0 if has_started_next else 1)
    if place == 1:
        return [verb for verb in VERBS if verb.startswith(event.symbol)]
    if place == 2 and before[1] in _OF_JOB:
        with contextlib.suppress(DlaasError):
            return [view.id for view in Client().without_start().jobs(limit=50)]
    return []


# ------------------------------------------------------------------------------------------------------- loading

_loaded: WeakKeyDictionary[Any, DlaasMagics] = WeakKeyDictionary()


def _formatter(shell: Any) -> Any:
    """Where IPython looks for classes that show themselves."""
    return shell.display_formatter.ipython_display_formatter


def load(shell: InteractiveShell) -> None:
    """Add the magics to a shell, start remembering what runs, and bind `dlaas` if the name is free."""
    if shell in _loaded:
        return
    magics = _loaded[shell] = DlaasMagics(shell)
    shell.register_magics(magics)
    _formatter(shell).for_type(Job, magics.show)
    shell.set_hook("complete_command", _completions(_parser(DlaasMagics.train)), str_key="%%train")
    shell.set_hook("complete_command", _complete_verb, str_key="%dlaas")
    if NAME not in shell.user_ns:
        shell.push({NAME: _package()}, interactive=False)
    warm_soon()


def unload(shell: InteractiveShell) -> None:
    """Take away what `load` added."""
    magics = _loaded.pop(shell, None)
    if magics is None:
        return
    magics.close()
    shell.magics_manager.magics["cell"].pop("train", None)
    shell.magics_manager.magics["line"].pop("dlaas", None)
    _formatter(shell).pop(Job, None)
    if shell.user_ns.get(NAME) is _package() and shell.user_ns_hidden.get(NAME) is _package():
        shell.drop_by_id({NAME: _package()})


def _package() -> ModuleType:
    """Return the package itself, which imports this module and not the other way round."""
    return sys.modules["jupyter_dlaas"]
