"""Magics `%%train` and `%dlaas`: each parses its line and calls the public API, so plain Python can do the same."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import re
import shlex
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar
from weakref import WeakKeyDictionary

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, kwds, magic_arguments

from jupyter_dlaas.api import jobs, option_parsing, submission
from jupyter_dlaas.api.jobs import Job, JobFailed
from jupyter_dlaas.cli import main, parser
from jupyter_dlaas.cli import terminal as show
from jupyter_dlaas.client.follow import Follower, LogLines
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.kernel import submit
from jupyter_dlaas.kernel.follow import JobFollower, newest_cell
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
_OUTSIDE: Final = frozenset({"submit", "check", "engine", "serve"})
"""Verbs that only a terminal offers: in a notebook, `%%train` submits and checks."""
VERBS: Final = tuple(name for name in parser.VERBS if name not in _OUTSIDE)
SUMMARIES: Final = {name: parser.VERBS[name].summary for name in VERBS} | {
    "attach": "Show a job's card in this cell, and assign its results"
}
"""Summaries of the verbs in a notebook."""
_USERS_TEXT: Final = frozenset({"logs", "source", "report"})
"""Verbs that print text of the user's program, which is shown unchanged."""
_OF_SEVERAL: Final = frozenset(name for name in VERBS if parser.VERBS[name].takes_several)
_OF_JOB: Final = _OF_SEVERAL | {name for name in VERBS if parser.VERBS[name].of_job}


def _verbs_text() -> str:
    """Return the verbs of `%dlaas` in the groups of the command line's help."""
    width = max(map(len, VERBS)) + 2
    lines = []
    for title, verbs in parser.GROUPS.items():
        own = [verb for verb in verbs if verb.name in VERBS]
        if own:
            lines += [f"{title}:", *(f"  {verb.name:{width}}{SUMMARIES[verb.name]}" for verb in own), ""]
    return "\n".join([*lines, "Options of a verb, with an example: %dlaas VERB --help"])


def _dlaas_arguments(function: F) -> F:
    """Declare the arguments of `%dlaas` for its help."""
    for one in (
        kwds(epilog=_verbs_text()),
        argument(
            "rest",
            nargs="*",
            metavar="NAME",
            help="a job's handle (resnet-48), or its name (resnet) for the newest such job",
        ),
        argument("verb", nargs="?", metavar="VERB", help="a verb of the list below (default: jobs)"),
    ):
        function = one(function)
    return function


def _parser(magic: Any) -> argparse.ArgumentParser:
    """Return the argument parser that IPython attached to a magic."""
    parser: argparse.ArgumentParser = magic.parser
    return parser


@magics_class
class DlaasMagics(Magics):
    """Both magics of one shell, with their state."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell=shell)
        self._kernel = shell
        self.recorder = Recorder(shell)
        self.follower = JobFollower(shell)
        self._running: ExecutionInfo | None = None
        self._shown: set[int] = set()
        shell.events.register("pre_run_cell", self._before)

    def close(self) -> None:
        """Unregister from the shell's events."""
        self._kernel.events.unregister("pre_run_cell", self._before)
        self.recorder.close()
        self.follower.close()

    def _before(self, info: ExecutionInfo) -> None:
        self._running = info
        self._shown.clear()

    # ------------------------------------------------------------------------------------------------------- %%train

    @cell_magic
    @magic_arguments("%train")  # type: ignore[untyped-decorator]
    @train_options
    def train(self, line: str, cell: str) -> Job | None:
        """Train this cell as a job of the pool, which continues independently of the kernel, the tab and the server.

        The job receives what the cell needs from the cells that ran before it. The magic returns immediately with a
        live job: `dlaas.job(NAME)` finds it again, `%dlaas jobs` lists all. `--gpus 1:4` lets it grow and shrink.
        """
        current = self._cell(cell)
        parsed = parse(_parser(self.train), line, where=submit.where_of(current))
        cells = self.recorder.cells()
        suggestion = submit.suggestion_of(cells, current, parsed)
        if parsed.is_suggestion:
            forms = {"text/plain": suggestion_text(suggestion), "text/html": suggestion_html(suggestion)}
            self._kernel.display_pub.publish(data=forms)
            return None
        self.follower.collect_ended()  # of jobs whose results only other names of this cell refer to, too
        results, earlier = self.follower.results(), self.follower.earlier.facts()
        with submit.prepared(self._kernel, cells, current, parsed, results, suggestion, earlier) as ready:
            prepared = submission.prepare(ready.made.text, **ready.options)
            if parsed.is_dry_run:
                print(submit.dry_run_text(ready.made, prepared, Client()))
                return None
            job = jobs.send(prepared)
        outputs = prepared.submit.spec.outputs
        self.follower.earlier.note(job, ready.made, current.count, outputs, self._kernel.user_ns)
        self._show_now(job)
        if outputs:
            self.follower.assign_later(job, outputs, is_new=True)
        if parsed.is_waited_for:
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
        """Return the notebook's id of the cell, which the front end sends with the execute request."""
        found = getattr(info, "cell_id", None)
        get_parent = getattr(self._kernel, "get_parent", None)
        if found is None and get_parent is not None:
            found = (get_parent() or {}).get("metadata", {}).get("cellId")
        return found if isinstance(found, str) and len(found) <= 200 else None

    def _show_now(self, job: Job) -> None:
        """Show the card before anything else is printed below it. A terminal shows what a cell returns."""
        if self.follower.has_displays:
            self.follower.show(job, is_new=True)
            self._shown.add(id(job))

    def show(self, job: Job) -> None:
        """Show a Job that a cell returns or displays. Called by IPython's formatter."""
        if id(job) in self._shown:
            self._shown.discard(id(job))
            return
        self.follower.show(job)

    def _wait(self, job: Job) -> None:
        """Show states and log lines until the job ends. An interrupt detaches."""
        reader = Follower(job.follow().client, job.id, ends_at_halt=True)
        lines = LogLines(is_marked=job.last_view.size.max > 1)
        reported = ""
        try:
            for message in reader.messages():
                if message["type"] == "job" and reader.view is not None:
                    now = show.job_text(reader.view, show.Ink())
                    if now != reported:
                        print(now, flush=True)
                    reported = now
                for text in lines.feed(message):
                    print(text, flush=True)
            for text in lines.rest():
                print(text, flush=True)
        except KeyboardInterrupt:
            print(f"Detached: {job.id} keeps running. To follow it: %dlaas attach {job.id}", flush=True)
            return
        except DlaasError as error:
            raise NotDone(f"{job.id} was submitted, but following it failed: {error}") from None
        over = job.view
        self.follower.collect(job)
        if over.state is State.HALTED:
            raise NotDone(jobs.halted_text(over, f"%dlaas resume {job.id}"))
        if over.state is not State.COMPLETED:
            raise NotDone(*jobs.failure_text(over).splitlines()) from None

    # -------------------------------------------------------------------------------------------------------- %dlaas

    @line_magic
    @magic_arguments()  # type: ignore[untyped-decorator]
    @_dlaas_arguments
    def dlaas(self, line: str) -> Job | None:
        """Manage jobs and the pool, with the verbs of the command line `jupyter dlaas`. Without a verb, list the jobs.

        `%dlaas jobs`, `%dlaas logs NAME -f`, `%dlaas scale NAME 4`, `%dlaas why NAME`. `%dlaas attach NAME` shows the
        job's card here and assigns its results in this notebook.
        """
        try:
            given = shlex.split(line)
        except ValueError as error:
            raise NotDone(f"%dlaas: {option_parsing.quoting(error)}.") from None
        if given and given[0] not in VERBS:
            close = difflib.get_close_matches(given[0], VERBS, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Use one of {', '.join(VERBS)}."
            raise NotDone(f"%dlaas: unknown verb {given[0]!r}. {hint}")
        try:
            if not given:
                _run(["jobs"])
                print("For all verbs: %dlaas?")
                return None
            if given[0] == "attach":
                return self._attach(given[1:])
            _run(given)
            if given[0] == "logs":  # with --follow, the job has ended
                self.follower.collect_ended()
        except JobFailed as error:
            raise NotDone(*str(error).splitlines()) from None
        except DlaasError as error:
            raise NotDone(f"%dlaas {given[0]}: {_for_notebook(str(error))}") from None
        return None

    def _attach(self, given: list[str]) -> Job:
        """Show a job here and assign its results: now if it has completed, else when it completes."""
        if len(given) != 1 or given[0] in ("-h", "--help"):
            raise NotDone("%dlaas attach: requires one job, such as %dlaas attach resnet-48.")
        job = jobs.job(given[0])
        self._show_now(job)
        names = job.last_view.outputs
        if names and not job.last_view.state.is_final:
            self.follower.assign_later(job, names)
        elif names and job.last_view.state is State.COMPLETED:
            self.follower.assign_now(job, names)
        return job


def _run(given: list[str]) -> None:
    """Run a verb of the command line, with its output adapted to a notebook."""
    notes: Any = _NotebookOutput(sys.stdout)
    out: Any = sys.stdout if given[0] in _USERS_TEXT else notes
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(_CapturedErrors()) as stderr:
        try:
            code = main.main(given, notes)
        except SystemExit as end:  # argparse: wrong usage, or --help
            code = int(end.code or 0)
    if code == main.DETACHED:
        print(_for_notebook(stderr.text).strip())
    elif code:
        wrong = re.sub(r"^dlaas: ", "", _for_notebook(stderr.text), flags=re.MULTILINE).strip()
        raise NotDone(wrong.splitlines()[-1].replace(": error:", ":") if ": error:" in wrong else wrong)


def _for_notebook(text: str) -> str:
    """Replace the terminal's command in advice by the magic."""
    return re.sub(r"\b(?:usage: )?jupyter dlaas\b", "%dlaas", text)


class _NotebookOutput:
    """Standard output that replaces the terminal's command by the magic."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_for_notebook(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _CapturedErrors:
    """Captured standard error, which becomes the error of the cell."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def isatty(self) -> bool:
        return False


# ------------------------------------------------------------------------------------------------------ completion


def _completions(parser: Any) -> Any:
    """Return a completer of the options of `%%train`."""

    def complete(_shell: Any, event: Any) -> list[str]:
        options = [action for action in parser._option_string_actions if action.startswith("--")]
        return [option for option in options if option.startswith(event.symbol)] if event.symbol.startswith("-") else []

    return complete


def _complete_verb(_shell: Any, event: Any) -> list[str]:
    """Complete verbs, and the names of jobs after them."""
    before = event.text_until_cursor.split()
    has_started_next = event.text_until_cursor.endswith(" ")
    place = len(before) - (0 if has_started_next else 1)
    if place == 1:
        return [verb for verb in VERBS if verb.startswith(event.symbol)]
    if place >= 2 and before[1] in (_OF_JOB if place == 2 else _OF_SEVERAL):
        with contextlib.suppress(DlaasError):
            return [view.id for view in Client().without_start().jobs(limit=50)]
    return []


# ------------------------------------------------------------------------------------------------------- loading

_loaded: WeakKeyDictionary[Any, DlaasMagics] = WeakKeyDictionary()


def _formatter(shell: Any) -> Any:
    """Return IPython's formatter, where classes register how they are shown."""
    return shell.display_formatter.ipython_display_formatter


def load(shell: InteractiveShell) -> None:
    """Add the magics to a shell, start recording executed cells, and bind `dlaas` if the name is free."""
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
    """Remove what `load` added."""
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
