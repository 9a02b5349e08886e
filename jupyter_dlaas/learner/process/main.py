"""The main program of a learner: runs a job's train.py as `__main__` and writes its result to result.json.

Started as `python -m jupyter_dlaas.learner.process.main JOB_DIR MEMBER`, or as `main` in a fork of a zygote.
"""

from __future__ import annotations

import builtins
import faulthandler
import functools
import json
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from jupyter_dlaas.failures.cell_map import CellMap
from jupyter_dlaas.failures.diagnosis import from_exit
from jupyter_dlaas.failures.failure_table import NO_WORD
from jupyter_dlaas.jobdir.atomic_files import FULL, write_whole
from jupyter_dlaas.jobdir.layout import learner_folder
from jupyter_dlaas.jobdir.log_index import LOG
from jupyter_dlaas.learner import autolog
from jupyter_dlaas.learner.control.context import Context, Leave, enter
from jupyter_dlaas.learner.control.guardian_channel import Control
from jupyter_dlaas.learner.environment import left_out_variables, lone_learner, malloc, seeds, visible_devices
from jupyter_dlaas.learner.log_capture import stdout_reader
from jupyter_dlaas.learner.process import failure_report, interpreter_shutdown, notebook_shims, prelude, thread_errors
from jupyter_dlaas.learner.process.source_links import link_originals
from jupyter_dlaas.learner.process.stop_requests import StopRequests
from jupyter_dlaas.learner.training_run import weight_update_check
from jupyter_dlaas.objects import code_versions, object_values
from jupyter_dlaas.runtime.spawn import job_zygote
from jupyter_dlaas.runtime.spawn.after_fork import Output, restream
from jupyter_dlaas.runtime.system.process import PRIVATE, uptime_s
from jupyter_dlaas.wire.codec import clean, decode, encode
from jupyter_dlaas.wire.learner_messages import Dismiss, FailureReport, GuardianMessage
from jupyter_dlaas.wire.left_out import LEFT_OUT
from jupyter_dlaas.wire.masked_records import masked_failure
from jupyter_dlaas.wire.protocol import Failure, JobSpec
from jupyter_dlaas.wire.secret_masking import mask_of

__all__ = ["main"]


def main(arguments: list[str]) -> NoReturn:
    """Run one learner to its end. Does not return."""
    job_dir, member = Path(arguments[0]), int(arguments[1])
    if job_zygote.FLAG in arguments:
        job_zygote.leave_behind(job_dir)
    context = _context(job_dir, member)
    enter(context)
    cells = CellMap(job_dir / "train.py", context.spec.cells, context.spec.script)
    code = 1
    raised: list[BaseException] = []
    stops = StopRequests(context)
    try:
        ending = _prepare(context, stops)
        stops.script, stops.where = cells.script, cells.place
        context.end_now = functools.partial(_end_now, context, stops, ending, cells)
        context.control.beats.script = cells.script
        context.control.beats.where = cells.place
        context.control.beats.describe = cells.where
        context.control.beats.is_limited = context.spec.hang_after_s is not None
        thread_errors.watch(cells, job_dir / "files", _log(context))
        context.control.start()
        code, body = _run(context, cells, raised)
        if os.getpid() != context.control.pid:
            _end_fork(code, ending, cells)
        stops.over()
        if body["outcome"] == "ok" and context.rank == 0 and context.spec.outputs:
            context.control.update_state(is_storing=True)
            body |= _store_results(context)
        body |= _at_end(context)
        if body["outcome"] == "ok" and body.pop("saw_stop", False):
            body["outcome"] = "left"  # a custom loop that ended on request
        body["up_s"] = body.get("up_s") or uptime_s()
        _write(context, body)
        if raised:
            failure_report.call_hook(raised.pop())
        has_failed, is_asked = body["outcome"] in ("error", "exit"), body["outcome"] == "left"
        ending.run(cells.place, has_failed=has_failed, is_asked=is_asked)
    except BaseException as error:  # noqa: BLE001 - our own error, not the user's: the log and the exit code show it
        failure_report.restore_builtins()
        code = NO_WORD if isinstance(error, OSError) and error.errno in FULL else code or 1
        with failure_report.calm():
            # The program's signal handler ran before its error was reported, or SIGTERM came before its first line.
            if cause := raised[0] if raised else error if isinstance(error, Leave) else None:
                code, body = _ended_by(cause, context, cells)
                _write(context, body | {"up_s": uptime_s()})
            else:
                failure_report.show("".join(traceback.format_exception(error)), _log(context))
    finally:
        try:
            interpreter_shutdown.flush_streams()
        finally:
            # Skip the interpreter's shutdown: after `import torch` it takes longer than most of the learner's own work.
            os._exit(code)


def _end_now(context: Context, stops: StopRequests, ending: interpreter_shutdown.Shutdown, cells: CellMap) -> NoReturn:
    """End a program that caught the request to leave, at the next boundary that it would pass."""
    try:
        stops.over()
        body = {"outcome": "left", "code": 0, "failure": None} | _at_end(context)
        _write(context, body | {"up_s": body.get("up_s") or uptime_s()})
        ending.run(cells.place, has_failed=False, is_asked=True)
    finally:
        try:
            interpreter_shutdown.flush_streams()
        finally:
            os._exit(0)


def _end_fork(code: int, ending: interpreter_shutdown.Shutdown, cells: CellMap) -> NoReturn:
    """End a process that the program forked and let run on: only the learner itself has a result."""
    try:
        ending.run(cells.place, has_failed=code != 0)
    finally:
        os._exit(code)


def _at_end(context: Context) -> dict[str, Any]:
    """Return the additions of other modules to the result. An error in one is logged, and does not lose the result."""
    body: dict[str, Any] = {}
    for at_end in context.at_end:
        try:
            body |= at_end()
        except Exception as error:
            failure_report.show("".join(traceback.format_exception(error)), _log(context))
            if isinstance(error, OSError) and error.errno in FULL:
                raise
    return body


def _write(context: Context, body: dict[str, Any]) -> None:
    """Write the result for the guardian; if the disk is full, send it the failure."""
    if body["failure"] is not None and context.mask.forms:
        body = body | {"failure": encode(masked_failure(decode(Failure, body["failure"]), context.mask))}
    try:
        write_whole(learner_folder(context.job_dir, context.member) / "result.json", json.dumps(clean(body)).encode())
    except OSError:
        if body["failure"] is None:
            raise
        context.control.send(FailureReport(failure=decode(Failure, clean(body["failure"]))))


def _log(context: Context) -> Path:
    return learner_folder(context.job_dir, context.member) / LOG


def _context(job_dir: Path, member: int) -> Context:
    body = json.loads((job_dir / "spec.json").read_bytes())
    job: str = body["id"]
    return Context(
        job=job,
        job_dir=job_dir,
        spec=decode(JobSpec, body["spec"], unknown="ignore"),
        mask=mask_of(os.environ),
        member=member,
        generation=int(os.environ.get("DLAAS_GENERATION", "0")),
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        seed=seeds.seed_of(job),
        is_joining=os.environ.get("DLAAS_JOINS") == "1",
        may_change=os.environ.get("DLAAS_MAY_CHANGE") == "1",
        has_gpus=os.environ.get("CUDA_VISIBLE_DEVICES") != "",
        control=Control(job_dir, member),
    )


def _prepare(context: Context, stops: StopRequests) -> interpreter_shutdown.Shutdown:
    """Set up this process like one that runs the user's script; return its shutdown."""
    job_dir, spec = context.job_dir, context.spec
    if not isinstance(sys.stdout.buffer, Output):  # a fork has these already
        restream()
    faulthandler.enable()
    malloc.keep_freed()
    malloc.limit_data(spec.memory_bytes_per_learner)
    seeds.seed_all(context.seed, later=True)

    object_values.begin_program()
    stops.install()
    _forks_end_as_usual(stops.on_term)

    def on_orphaned() -> None:
        context.is_orphaned = True
        os.kill(os.getpid(), signal.SIGTERM)

    context.control.on_orphaned = on_orphaned
    context.control.on_message = _on_message
    sys.argv = [str(job_dir / "train.py"), *spec.command]
    directory = spec.directory or str(job_dir)
    try:
        os.chdir(directory)
    except OSError as error:
        if PRIVATE in os.environ:  # the directory of another machine: nothing is wrong
            print(f"[{directory} is not on this machine; relative paths begin at {job_dir}]", flush=True)
        else:
            print(f"[cannot use the directory {directory} ({error.strerror}); running in {job_dir}]", flush=True)
        os.chdir(job_dir)
        directory = str(job_dir)
    _tell_left_out(context)
    visible_devices.keep_assigned(lambda note: print(f"[{note}]", flush=True))
    link_originals(job_dir)
    own = [str(job_dir / "files"), directory]
    sys.path[:] = own + [entry for entry in sys.path if entry not in ("", *own)]
    if spec.cells:
        program = (job_dir / "train.py").read_text(encoding="utf-8", errors="replace")
        keeps = context.rank == 0
        context.at_end.append(notebook_shims.install(lambda: context.output_dir, program=program, keeps=keeps))
        if spec.outputs:
            context.on_entry = functools.partial(_note_origins, context)
    if spec.learners_max == 1:
        lone_learner.train_alone()
    if spec.autolog:
        autolog.install()
    stdout_reader.watch(context)
    weight_update_check.watch(context)
    return interpreter_shutdown.Shutdown((job_dir / "files", Path(directory)), job_dir)


def _tell_left_out(context: Context) -> None:
    if LEFT_OUT in os.environ:
        program = (context.job_dir / "train.py").read_text(encoding="utf-8", errors="replace")
        note = left_out_variables.left_out_note(program, os.environ)
        if note is not None and context.rank == 0 and not context.is_joining:
            print(f"[{note}]", flush=True)


def _forks_end_as_usual(on_term: Callable[..., None]) -> None:
    """Let processes that the program forks end at SIGTERM, as in a script: our handler is only for the learner.

    SIGTERM is blocked during a fork. A child's interpreter loses a signal that arrives before its first line, and a
    worker that does not end would be waited for forever.
    """
    held = threading.local()
    mine = {signal.SIGTERM}

    def before() -> None:
        held.by_program = mine <= signal.pthread_sigmask(signal.SIG_BLOCK, mine)

    def in_parent() -> None:
        if not getattr(held, "by_program", False):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, mine)

    def in_child() -> None:
        if signal.getsignal(signal.SIGTERM) == on_term:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        in_parent()

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def _on_message(message: GuardianMessage) -> None:
    """Handle the order to leave before run() does: the only message that concerns every program."""
    if isinstance(message, Dismiss):
        os.kill(os.getpid(), signal.SIGTERM)


def _run(context: Context, cells: CellMap, raised: list[BaseException]) -> tuple[int, dict[str, Any]]:
    """Run the user's code until its last thread ends. `raised` receives the exception that ended it."""
    script = context.job_dir / "train.py"
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=str(script), __builtins__=builtins, __spec__=None, __cached__=None)
    # A real module with this name: spawned data workers read its file, and pickles look up classes in it.
    sys.modules["__main__"] = module
    _be_main_process(module)
    context.script = module.__dict__
    try:
        try:
            prelude.execute(script, module.__dict__, context)
        except SystemExit as end:
            if isinstance(end, Leave) or context.is_terminated or not failure_report.is_success(end):
                raise
        interpreter_shutdown.join_threads(cells.place)
    except BaseException as error:  # noqa: BLE001 - any exception of user code becomes its failure
        raised.append(error)
        failure_report.restore_builtins()
        with failure_report.calm():
            ended = _ended_by(error, context, cells)
        if ended[1]["outcome"] != "error":
            raised.clear()
        return ended
    if context.has_left:
        return 0, {"outcome": "left", "code": 0, "failure": None}
    return 0, {"outcome": "ok", "code": 0, "failure": None, "is_stopped": context.is_terminated}


def _ended_by(error: BaseException, context: Context, cells: CellMap) -> tuple[int, dict[str, Any]]:
    """Return the exit code and result of a program that an exception ended."""
    kind = type(error)  # regardless of its __class__
    if (
        issubclass(kind, Leave) or context.is_terminated or context.has_left
    ):  # includes a program that handled the signal as an error
        # The guardian ignores the failure if it requested the end.
        is_signal = context.is_terminated and not context.is_orphaned
        failure = encode(from_exit(None, signal.SIGTERM)) if is_signal else None
        return 0, {"outcome": "left", "code": 0, "failure": failure}
    own_folder = context.job_dir / "files"
    if not issubclass(kind, SystemExit):
        is_alone = context.world_size == 1 and not context.may_change
        failure, text = failure_report.report(error, cells, own_folder, is_alone=is_alone, has_gpus=context.has_gpus)
        failure_report.show(text, _log(context))
        return 1, {"outcome": "error", "code": 1, "failure": _with_member(failure, context)}
    assert isinstance(error, SystemExit)
    if failure_report.is_success(error):
        return 0, {"outcome": "ok", "code": 0, "failure": None}
    code, failure, text = failure_report.report_exit(error, cells, own_folder)
    if text:
        failure_report.show(text, _log(context))
    return code, {"outcome": "exit", "code": code, "failure": _with_member(failure, context)}


def _be_main_process(main: types.ModuleType) -> None:
    """Make this process multiprocessing's main process, even if a zygote imported it.

    Spawned workers find the program's classes through `__mp_main__`, and each job has its own authentication key.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        sys.modules["__mp_main__"] = main
        vars(process)["ORIGINAL_DIR"] = str(Path.cwd())
        process.current_process().authkey = os.urandom(32)


def _with_member(failure: Failure, context: Context) -> dict[str, Any]:
    body: dict[str, Any] = encode(failure)
    return body | {"raised_by": [context.member]}


def _note_origins(context: Context) -> None:
    """Record the objects that the training cell finds: those of the job's outputs, and the content of all others."""
    from jupyter_dlaas.learner.process.changed_names import ObjectContents
    from jupyter_dlaas.transfer.shared_objects import Origins

    values = {name: context.script[name] for name in context.spec.outputs if name in context.script}
    try:
        context.origins = Origins(values, [one for one in context.script.values() if isinstance(one, type)])
        others = {name: one for name, one in context.script.items() if name not in values}
        context.contents = ObjectContents(others, context.origins.objects)
    except Exception as error:  # noqa: BLE001 - objects of any class may fail in any way
        why = f"{type(error).__name__}: {error}"
        print(f"[what refers to parts of {', '.join(values)} will not follow: {why}]", flush=True)


def _store_results(context: Context) -> dict[str, Any]:
    from jupyter_dlaas.transfer import results, rng_state

    at_end = rng_state.written()
    for act in context.before_results:
        act()
    folder, names = context.job_dir / "results", context.spec.outputs
    changed = context.contents.changed(context.script) if context.contents is not None else []
    stored, errors = results.store(folder, names, context.script, context.origins, changed)
    if stored:
        write_whole(context.job_dir / "results" / results.STREAMS, at_end.encode(), sync=True)
        if (table := code_versions.table())["modules"]:
            write_whole(context.job_dir / "results" / results.VERSIONS, json.dumps(table).encode(), sync=True)
    for name, why in errors.items():
        # kernel/follow.py reads this line
        print(f"[{name} could not be returned: {why}]", file=sys.stderr, flush=True)
    return {"results": stored, "errors": errors}


if __name__ == "__main__":
    main(sys.argv[1:])
