"""Runs a job's train.py as this process' `__main__` and leaves its last word in result.json.

`python -m jupyter_dlaas.learner.runner JOB_DIR MEMBER`, or the same `main` in a fork of a zygote.
"""

from __future__ import annotations

import builtins
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from jupyter_dlaas.learner import autolog, first_steps, memory, notebookisms, prelude, seeds, shutdown, watching
from jupyter_dlaas.learner.context import Context, Leave, enter
from jupyter_dlaas.learner.control import Control
from jupyter_dlaas.learner.tracebacks import CellMap, failure_of, in_cells
from jupyter_dlaas.protocol import Cause, Failure, JobSpec
from jupyter_dlaas.runtime import nursery
from jupyter_dlaas.runtime.failures import NO_WORD
from jupyter_dlaas.runtime.files import FULL, write_whole
from jupyter_dlaas.runtime.launch import learner_folder
from jupyter_dlaas.runtime.warm import Output, restream
from jupyter_dlaas.wire import decode, encode

__all__ = ["main"]


def main(arguments: list[str]) -> NoReturn:
    """Run one learner to its end. Does not return."""
    job_dir, member = Path(arguments[0]), int(arguments[1])
    if nursery.FLAG in arguments:
        nursery.leave_behind(job_dir)
    context = _context(job_dir, member)
    enter(context)
    cells = CellMap(job_dir / "train.py", context.spec.cells)
    code = 1
    try:
        ending = _prepare(context)
        context.control.beats.script = cells.script
        context.control.beats.where = cells.place
        context.control.start()
        code, body = _run(context, cells)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left is short, and must not be cut in two
        if body["outcome"] == "ok" and context.rank == 0 and context.spec.outputs:
            context.control.state(storing=True)
            body |= _store_results(context)
        for at_end in context.at_end:
            body |= at_end()
        if body["outcome"] == "ok" and body.pop("saw_stop", False):
            body["outcome"] = "left"  # a loop of the user's own that ended because it was asked to
        body["at_s"] = body.get("at_s") or time.time()
        write_whole(learner_folder(job_dir, member) / "result.json", json.dumps(body).encode())
        ending.run(has_failed=body["outcome"] in ("error", "exit"))
    except BaseException as error:  # noqa: BLE001 - ours, not the user's: told in the log, and by the exit code
        sys.excepthook(*sys.exc_info())
        code = NO_WORD if isinstance(error, OSError) and error.errno in FULL else code or 1
    finally:
        shutdown.flush_streams()
        # Not through the interpreter's end: after `import torch` that takes longer than most of what came before.
        os._exit(code)


def _context(job_dir: Path, member: int) -> Context:
    body = json.loads((job_dir / "spec.json").read_bytes())
    job: str = body["id"]
    return Context(
        job=job,
        job_dir=job_dir,
        spec=decode(JobSpec, body["spec"], unknown="ignore"),
        member=member,
        generation=int(os.environ.get("DLAAS_GENERATION", "0")),
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        seed=seeds.seed_of(job),
        is_joining=os.environ.get("DLAAS_JOINS") == "1",
        may_change=os.environ.get("DLAAS_MAY_CHANGE") == "1",
        control=Control(job_dir, member),
    )


def _prepare(context: Context) -> shutdown.Shutdown:
    """Make this process what a script of the user's would find; returns how it is to end."""
    job_dir, spec = context.job_dir, context.spec
    if not isinstance(sys.stdout.buffer, Output):  # a fork has these already
        restream()
    faulthandler.enable()
    memory.keep_freed()
    seeds.seed_all(context.seed, later=True)

    def on_term(*_: object) -> None:
        context.is_terminated = True
        raise Leave("terminated")

    signal.signal(signal.SIGTERM, on_term)
    _forks_end_as_usual(on_term)
    context.control.on_orphaned = lambda: os.kill(os.getpid(), signal.SIGTERM)
    context.control.on_message = lambda message: _told(message)
    sys.argv = [str(job_dir / "train.py"), *spec.command]
    directory = spec.directory or str(job_dir)
    try:
        os.chdir(directory)
    except OSError as error:
        print(f"[the directory {directory} is not there ({error.strerror}); running in {job_dir}]", flush=True)
        os.chdir(job_dir)
        directory = str(job_dir)
    own = [str(job_dir / "files"), directory]
    sys.path[:] = own + [entry for entry in sys.path if entry not in ("", *own)]
    if spec.cells:
        context.at_end.append(notebookisms.install(lambda: context.output_dir, keeps=context.rank == 0))
    if spec.autolog:
        autolog.install()
    watching.watch(context)
    first_steps.watch(context)
    return shutdown.Shutdown((job_dir / "files", Path(directory)), job_dir)


def _forks_end_as_usual(on_term: Callable[..., None]) -> None:
    """What the program forks ends at SIGTERM, as it would in a script: our handler is the learner's alone.

    Held back while it forks: the interpreter forgets, in a child, a signal that came before the child's first line, and
    a worker that nobody ends is waited for without end.
    """
    held = threading.local()
    mine = {signal.SIGTERM}

    def before() -> None:
        held.by_program = mine <= signal.pthread_sigmask(signal.SIG_BLOCK, mine)

    def in_parent() -> None:
        if not getattr(held, "by_program", False):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, mine)

    def in_child() -> None:
        if signal.getsignal(signal.SIGTERM) is on_term:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        in_parent()

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def _told(message: dict[str, Any]) -> None:
    """Before run() takes over: the one thing that concerns any program."""
    if message.get("t") == "leave":
        os.kill(os.getpid(), signal.SIGTERM)


def _run(context: Context, cells: CellMap) -> tuple[int, dict[str, Any]]:
    """User code, from its first line to its last thread."""
    script = context.job_dir / "train.py"
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=str(script), __builtins__=builtins, __spec__=None, __cached__=None)
    # A real module of that name: spawned data workers read its file, pickles look classes up in it.
    sys.modules["__main__"] = module
    _be_main_process(module)
    context.script = module.__dict__
    try:
        try:
            prelude.execute(script, module.__dict__, context)
        except SystemExit as end:
            if end.code or isinstance(end, Leave) or context.is_terminated:
                raise
        shutdown.join_threads(cells.place)
    except Leave:
        return 0, {"outcome": "left", "code": 0, "failure": None}
    except SystemExit as end:
        return _exit(end, context)
    except BaseException as error:  # noqa: BLE001 - whatever user code raises becomes its failure
        if context.is_terminated:  # the signal came in the middle of something that took it for an error
            return 0, {"outcome": "left", "code": 0, "failure": None}
        failure = failure_of(error, cells, context.job_dir / "files")
        print(in_cells(error, cells), end="", file=sys.stderr, flush=True)
        return 1, {"outcome": "error", "code": 1, "failure": _with_member(failure, context)}
    return 0, {"outcome": "ok", "code": 0, "failure": None}


def _be_main_process(main: types.ModuleType) -> None:
    """Let multiprocessing take this process for the one in which it was imported, also if a zygote imported it.

    Spawned workers name the classes of the program by `__mp_main__`; the key of one job is not that of another.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        sys.modules["__mp_main__"] = main
        vars(process)["ORIGINAL_DIR"] = str(Path.cwd())
        process.current_process().authkey = os.urandom(32)


def _with_member(failure: Failure, context: Context) -> dict[str, Any]:
    body: dict[str, Any] = encode(failure)
    return body | {"raised_by": [context.member]}


def _exit(end: SystemExit, context: Context) -> tuple[int, dict[str, Any]]:
    if context.is_terminated:
        return 0, {"outcome": "left", "code": 0, "failure": None}
    if end.code is None or end.code == 0:
        return 0, {"outcome": "ok", "code": 0, "failure": None}
    if isinstance(end.code, int):
        return end.code & 0xFF, {"outcome": "exit", "code": end.code & 0xFF, "failure": None}
    print(end.code, file=sys.stderr, flush=True)
    what = Failure(cause=Cause.YOUR_CODE, code="exit_code", what=f"sys.exit: {end.code}"[:500], advice="See the log.")
    return 1, {"outcome": "exit", "code": 1, "failure": _with_member(what, context)}


def _store_results(context: Context) -> dict[str, Any]:
    from jupyter_dlaas.learner import results

    stored, errors = results.store(context.job_dir / "results", context.spec.outputs, context.script)
    for name, why in errors.items():
        print(f"[{name} could not be brought back: {why}]", file=sys.stderr, flush=True)
    return {"results": stored, "errors": errors}


if __name__ == "__main__":
    main(sys.argv[1:])
