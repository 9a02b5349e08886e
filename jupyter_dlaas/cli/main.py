"""Command line `jupyter dlaas …`: the verbs of `%dlaas` in a terminal. Each calls the public API and prints the result.

Exit codes: 0 success, 1 the followed job did not complete, 2 usage error, 3 job not found, 4 refused (not possible in
the job's state, never possible on this pool, or not permitted), 5 no engine available, 130 detached by an interrupt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from jupyter_dlaas._version import __version__
from jupyter_dlaas.api import jobs, option_parsing
from jupyter_dlaas.cli import engine_control, terminal
from jupyter_dlaas.cli.terminal import Ink
from jupyter_dlaas.client import discovery
from jupyter_dlaas.client.follow import Follower, LogLines
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.codec import DlaasError, Invalid, encode
from jupyter_dlaas.wire.protocol import (
    ActionId,
    Cursor,
    Forbidden,
    JobView,
    NotAllowed,
    NotFound,
    PoolOrder,
    PoolPlacement,
    Refused,
    State,
    Unavailable,
)

__all__ = ["main"]

DETACHED: Final = 130
_CODES: Final[tuple[tuple[type[DlaasError], int], ...]] = (
    (jobs.JobFailed, 1),
    (Invalid, 2),
    (NotFound, 3),
    (NotAllowed, 4),
    (Forbidden, 4),
    (Refused, 4),
    (Unavailable, 5),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors are printed to stderr."""
    given = list(sys.argv[1:] if argv is None else argv)
    own, _dashes, script_args = _split(given)
    options = _parser().parse_args(own)
    options.args = script_args
    if script_args and options.verb != "submit":
        print("dlaas: only `submit` takes arguments after --", file=sys.stderr)
        return 2
    try:
        done: int = options.run(options)
        sys.stdout.flush()
        return done
    except DlaasError as error:
        return _print_error(error, options)
    except BrokenPipeError:  # the reader closed the pipe, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return DETACHED


def _split(given: list[str]) -> tuple[list[str], str, list[str]]:
    if "--" not in given:
        return given, "", []
    at = given.index("--")
    return given[:at], "--", given[at + 1 :]


def _print_error(error: DlaasError, options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(error.as_json()))
    else:
        print(f"dlaas: {error}", file=sys.stderr)
    return next((code for kind, code in _CODES if isinstance(error, kind)), 5)


# ---------------------------------------------------------------------------------------------------------- the parser


class _Verb(argparse.ArgumentParser):
    """Parser of one verb. Reports unknown arguments itself, so that the usage of this verb is shown."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(
                option_parsing.unknown_argument(
                    unknown[0], self._option_string_actions, help_command=f"{self.prog} --help"
                )
            )
        return found, unknown


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="jupyter dlaas", description="Submit training jobs to a pool and manage them.")
    top.add_argument("--version", action="version", version=f"jupyter_dlaas {__version__}")
    _common(top, json=False, pool=None)
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Verb)

    def verb(name: str, run: Callable[[argparse.Namespace], int], summary: str, *, of_job: bool = False) -> Any:
        parser = verbs.add_parser(name, help=summary, description=summary)
        _common(parser, json=argparse.SUPPRESS, pool=argparse.SUPPRESS)
        if of_job:
            parser.add_argument(
                "name", metavar="NAME", help="a job's handle (resnet-48), or its name (resnet) for the newest such job"
            )
        parser.set_defaults(run=run)
        return parser

    _submit_options(verb("submit", _submit, "Submit a script: submit FILE [options] [-- arguments of the script]"))
    parser = verb("jobs", _jobs, "List jobs, newest first")
    parser.add_argument("--state", help="list only jobs in these states, separated by commas")
    parser.add_argument("--limit", type=int, default=30, help="maximum number of jobs to list (default: 30)")
    _pool_options(
        verb("pool", _pool, "Show devices and the jobs that hold them; change the pool's scheduling settings")
    )
    _queue_options(
        verb("queue", _queue, "Show waiting jobs in queue order; list, set or remove queues and their shares")
    )
    for name, run, summary in (
        ("cordon", _cordon, "Place no new jobs on a node; running jobs stay"),
        ("uncordon", _cordon, "Allow jobs on a node again; ends a drain"),
        ("drain", _drain, "Empty a node: shrink elastic jobs, move the others, preempt (checkpoint, requeue) last"),
    ):
        parser = verb(name, run, summary)
        parser.add_argument("node", metavar="NODE", help="a node's name, as listed by `jupyter dlaas pool`")
        if name == "drain":
            parser.add_argument(
                "--dry-run", action="store_true", help="show what would happen to the jobs on the node, then stop"
            )
    parser = verb("logs", _logs, "Show the learners' logs", of_job=True)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="follow the log until the job ends; Ctrl-C detaches"
    )
    parser.add_argument("--member", type=int, metavar="N", help="show only the log of learner N")
    parser = verb("scale", _scale, "Set the number of learners of a running job", of_job=True)
    parser.add_argument("learners", metavar="N", help="the new number of learners")
    for name, summary in (
        ("halt", "Write a checkpoint and release the devices; asks for confirmation if no checkpoint can be written"),
        ("resume", "Resume a halted job"),
        ("cancel", "Cancel a job permanently"),
        ("checkpoint", "Write a checkpoint at the next step; training continues"),
        ("retry", "Resubmit a job as a new job"),
    ):
        parser = verb(name, _act, summary, of_job=True)
        if name == "halt":
            parser.add_argument(
                "--yes", action="store_true", help="also halt a job that has no checkpoint and would start over"
            )
    verb("delete", _delete, "Delete an ended job: its record, log, checkpoints and results", of_job=True)
    verb("why", _why, "Explain why a job is in its current state", of_job=True)
    verb("story", _story, "Show the event history of a job", of_job=True)
    verb("attach", _attach, "Follow a job's states and log; Ctrl-C detaches", of_job=True)
    verb("source", _source, "Print a job's program, train.py", of_job=True)
    parser = verb(
        "check", _check, "Analyse the training cells of notebooks without running them: required code, missing names"
    )
    parser.add_argument("paths", nargs="+", metavar="NOTEBOOK", help="an .ipynb file, or a folder with such files")
    parser.add_argument(
        "--cell", type=int, metavar="N", help="check only the N-th code cell, even if it does not look like training"
    )
    parser.add_argument("--suggest", action="store_true", help="show the changes that would make the loop elastic")
    verb("report", _report, "Print a report for support: spec, failure, last log lines; secrets masked", of_job=True)
    parser = verb("serve", _serve, "Run the pool's engine in the foreground")
    parser.add_argument("--idle-s", type=float, default=0.0, help="exit after this many idle seconds (default: never)")
    parser = verb("engine", _engine, "Show whether the pool's engine is running, or stop it; jobs keep running")
    parser.add_argument("what", choices=("status", "stop"))
    return top


def _common(parser: argparse.ArgumentParser, *, json: Any, pool: Any) -> None:
    parser.add_argument("--json", action="store_true", default=json, help="print JSON, in the format of the REST API")
    parser.add_argument("--pool", default=pool, help="the pool to use: its name, or its directory (with a slash)")


def _pool_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--order", choices=[str(order) for order in PoolOrder], help="queue order among jobs of equal priority"
    )
    parser.add_argument("--preemption", choices=("on", "off"), help="off: never preempt running jobs")
    parser.add_argument(
        "--placement",
        choices=[str(placement) for placement in PoolPlacement],
        help="default placement of learners on nodes",
    )
    parser.add_argument(
        "--spot-price", type=float, metavar="P", help="weight of a spot job's device in its queue's share, from 0 to 1"
    )
    parser.add_argument(
        "--spot-notice",
        metavar="30s",
        help="time that a spot job gets to write a checkpoint before its devices are reclaimed",
    )


def _queue_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=("list", "set", "remove"),
        help="list queues and their shares, set a queue's share, or remove a queue",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the queue; `set` creates it if needed")
    parser.add_argument(
        "--weight", type=float, metavar="W", help="share of the devices that no queue is guaranteed (default: 1)"
    )
    parser.add_argument("--guaranteed", type=int, metavar="N", help="devices guaranteed to the queue (default: 0)")


def _submit_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="a Python script")
    add("--name", help="name of the job (default: the script's name)")
    add("--gpus", metavar="N|MIN:MAX", help="number of GPUs, one learner each (CPU slots in a pool without GPUs)")
    add("--learners", metavar="N|MIN:MAX", help="number of learners (training processes)")
    add("--gpus-per-learner", metavar="K", help="GPUs per learner (default: 1)")
    add("--cpus", type=float, metavar="N", help="CPUs per learner")
    add("--memory", metavar="8G", help="memory per learner")
    add("--gpu-kind", metavar="KIND", help="require GPUs whose name contains this text")
    add("--priority", default="normal", metavar="low|normal|high|INT", help="higher priorities start first")
    add("--queue", default="default", help="queue that accounts for the job's devices (default: default)")
    add(
        "--spot",
        action="store_true",
        help="use only idle devices, at a lower weight, and return them when ordinary jobs need them",
    )
    add("--placement", metavar="pack|spread", help="placement of the learners on nodes (default: the pool's setting)")
    add(
        "--elastic",
        default="manual",
        metavar="off|manual|auto[:CONDITION]",
        help="what may resize the running job: nothing (off), your requests (manual, default), "
        "or measured speed (auto:efficiency=0.2)",
    )
    add("--schedule", action="append", default=[], metavar="'epoch 30: 4 gpus'", help="sizes by epoch")
    add("--framework", help="training framework (default: detected from the imports)")
    add("--epochs", metavar="N", help="number of epochs, for progress and estimates")
    add("--max-time", metavar="2h", help="halt the job with a checkpoint after this much training time")
    add(
        "--hang-after",
        metavar="10m",
        help="end a learner that makes no progress for this long (default: 30s or ten steps, in loops of steps)",
    )
    add("-o", "--outputs", metavar="NAMES", help="variables to return as results, such as model,history")
    add("--include", action="append", default=[], metavar="PATH", help="a file or folder to send with the job")
    add("-e", "--env", action="append", default=[], metavar="K=V", help="an environment variable for the job")
    add(
        "--secret",
        action="append",
        default=[],
        metavar="NAME",
        help="an environment variable to send with the job; its value is masked in logs",
    )
    add("--retries", default=4, metavar="N", help="restarts after failures that may be transient (default: 4)")
    add("--checkpoint-every", default=60.0, metavar="60s", help="time between checkpoints (default: 60s)")
    add("--metric", action="append", default=[], metavar="REGEX", help="read a metric from printed lines")
    add(
        "--autolog",
        default="on",
        metavar="on|off",
        help="read metrics from frameworks, progress bars and printed lines",
    )
    add("--directory", metavar="PATH", help="working directory of the job (default: the current one)")
    add("--interpreter", metavar="PYTHON", help="Python interpreter of the job (default: the current one)")
    add("--wait", action="store_true", help="follow the job until it ends; Ctrl-C detaches")
    add("--dry-run", action="store_true", help="show the submission and any problems, without submitting")


_SPEC: Final = (
    *("name", "gpus", "learners", "gpus_per_learner", "cpus", "memory", "gpu_kind", "priority", "queue", "spot"),
    *(
        "placement",
        "elastic",
        "schedule",
        "framework",
        "epochs",
        "max_time",
        "hang_after",
        "outputs",
        "include",
        "env",
        "secret",
        "retries",
        "checkpoint_every",
    ),
    *("metric", "autolog", "directory", "interpreter", "args"),
)


# ----------------------------------------------------------------------------------------------------------- the verbs


def _client(options: argparse.Namespace) -> Client:
    return Client(options.pool)


def _ink(stream: Any = None) -> Ink:
    out = stream or sys.stdout
    if not out.isatty():
        return Ink()
    is_coloured = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return Ink(is_coloured, shutil.get_terminal_size().columns)


def _out(options: argparse.Namespace, value: object, text: str) -> int:
    print(json.dumps(encode(value)) if options.json else text)
    return 0


def _submit(options: argparse.Namespace) -> int:
    prepared = jobs.prepare(options.file, **{name: getattr(options, name) for name in _SPEC})
    client = _client(options)
    if options.dry_run:
        return _dry_run(options, prepared, client)
    job = prepared.send(client)
    view = job.last_view
    if not options.wait:
        return _out(options, view, f"{terminal.job_text(view, _ink())}\n  Log: jupyter dlaas logs {view.id} -f")
    if not options.json:
        print(f"Submitted {view.id}. Ctrl-C detaches; the job keeps running.", file=sys.stderr)
    return _follow(options, client, view)


def _dry_run(options: argparse.Namespace, prepared: jobs.Prepared, client: Client) -> int:
    submit = prepared.submit
    found: dict[str, Any] = {"problems": [], "estimate": "no estimate: files would have to be uploaded first"}
    if not prepared.uploads:
        found = client.preflight(submit)
    shown = {"spec": submit.spec, "files": [file.path for file in submit.files], **found}
    problems = [str(problem["text"]) for problem in found["problems"]]
    size = f"{submit.spec.learners_min}-{submit.spec.learners_max} learners, {submit.spec.gpus_per_learner} GPU each"
    lines = [
        f"{submit.spec.name}: {size}; framework {submit.spec.framework or 'unknown'}",
        f"  runs {submit.spec.interpreter} in {submit.spec.directory}",
        *(f"  sends {file.path}" for file in submit.files),
        *(f"  problem: {problem}" for problem in problems),
        f"  {found['estimate']}" if found["estimate"] else "  nothing was submitted",
    ]
    _out(options, shown, "\n".join(lines))
    return 4 if problems else 0


def _jobs(options: argparse.Namespace) -> int:
    client = _client(options)
    views = client.jobs(state=options.state, limit=options.limit)
    text = terminal.jobs_table(views, time.time(), _ink())
    if not options.json:
        text = "\n".join([text, *map(terminal.plain, client.pool().notices)])
    if len(views) == options.limit:
        text += f"\nShowing {options.limit} jobs: running, next in the queue, newest. Use --limit for more."
    return _out(options, {"jobs": views}, text)


def _pool(options: argparse.Namespace) -> int:
    client = _client(options)
    notice = options.spot_notice
    changes: dict[str, Any] = {
        "order": options.order,
        "preemption": None if options.preemption is None else options.preemption == "on",
        "placement": options.placement,
        "spot_price": options.spot_price,
        "spot_notice_s": None if notice is None else option_parsing.duration_s(notice, option="spot notice"),
    }
    is_change = any(value is not None for value in changes.values())
    pool = client.change_pool(**changes) if is_change else client.pool()
    return _out(options, pool, terminal.pool_text(pool, _ink()))


def _queue(options: argparse.Namespace) -> int:
    client = _client(options)
    if options.what != "set" and (options.weight is not None or options.guaranteed is not None):
        raise Invalid("queue: --weight and --guaranteed require `queue set NAME`")
    if options.what is not None:
        return _queues(options, client)
    pool = client.pool()
    views = {view.id: view for view in client.jobs(state=State.QUEUED)}
    value = {"queue": [views.get(job, job) for job in pool.queue]}
    return _out(options, value, terminal.queue_table(pool, views, _ink()))


def _queues(options: argparse.Namespace, client: Client) -> int:
    if options.what == "list":
        pool = client.pool()
    elif options.name is None:
        share = " --guaranteed 6" if options.what == "set" else ""
        raise Invalid(f"queue {options.what}: missing queue name, as in `queue {options.what} research{share}`")
    elif options.what == "remove":
        pool = client.remove_queue(options.name)
    else:
        pool = client.set_queue(options.name, weight=options.weight, guaranteed=options.guaranteed)
    return _out(options, {"order": pool.order, "queues": pool.queues}, terminal.shares_table(pool, _ink()))


def _cordon(options: argparse.Namespace) -> int:
    client = _client(options)
    pool = (client.cordon if options.verb == "cordon" else client.uncordon)(options.node)
    return _out(options, pool, terminal.pool_text(pool, _ink()))


def _drain(options: argparse.Namespace) -> int:
    view = _client(options).drain(options.node, is_dry_run=options.dry_run)
    return _out(options, view, terminal.drain_text(view, _ink()))


def _logs(options: argparse.Namespace) -> int:
    client = _client(options)
    view = client.job(options.name)
    if options.follow:
        return _follow(options, client, view, is_judged=False, shows_states=False)
    reader = Follower(client, view.id, Cursor(), ("view", "log"), wait_s=0.0, view=view)
    lines = _lines(options, view)
    has_more = True
    while has_more:
        has_more = False
        for message in reader.once():
            has_more = has_more or message["type"] in ("job", "log")
            _print_log(options, lines, message)
    return _rest(options, lines)


def _lines(options: argparse.Namespace, view: JobView) -> LogLines:
    member = getattr(options, "member", None)
    return LogLines(is_marked=view.size.max > 1 and member is None, member=member)


def _print_log(options: argparse.Namespace, lines: LogLines, message: dict[str, Any]) -> None:
    if options.json:
        print(json.dumps(message), flush=True)
        return
    for line in lines.feed(message):
        print(line, flush=True)


def _rest(options: argparse.Namespace, lines: LogLines) -> int:
    for line in lines.rest():
        if not options.json:
            print(line)
    return 0


def _follow(
    options: argparse.Namespace, client: Client, view: JobView, *, is_judged: bool = True, shows_states: bool = True
) -> int:
    """Print log lines to stdout and states to stderr until the job ends; raise JobFailed with `is_judged`."""
    reader = Follower(client, view.id, view=view)
    lines, last, ink = _lines(options, view), "", _ink(sys.stderr)
    try:
        for message in reader.messages():
            if message["type"] == "job" and reader.view is not None and not options.json:
                text = terminal.job_text(reader.view, ink)
                if shows_states and text != last:
                    print(text, file=sys.stderr, flush=True)
                last = text
            elif message["type"] != "metrics" or options.json:
                _print_log(options, lines, message)
    except KeyboardInterrupt:
        print(f"\nDetached: {view.id} keeps running. To follow it: jupyter dlaas attach {view.id}", file=sys.stderr)
        return DETACHED
    _rest(options, lines)
    final = reader.view or view
    if is_judged and final.state is not State.COMPLETED:
        raise jobs.JobFailed(final)
    return 0


def _attach(options: argparse.Namespace) -> int:
    client = _client(options)
    return _follow(options, client, client.job(options.name))


def _scale(options: argparse.Namespace) -> int:
    job = jobs.Job(options.name, _client(options)).scale(options.learners)
    return _out(options, job.last_view, terminal.job_text(job.last_view, _ink()))


def _act(options: argparse.Namespace) -> int:
    client = _client(options)
    if options.verb == "halt" and not options.yes:
        _confirm_halt(client.job(options.name))
    view = client.act(options.name, options.verb)
    return _out(options, view, terminal.job_text(view, _ink()))


def _delete(options: argparse.Namespace) -> int:
    client = _client(options)
    job = client.job(options.name).id
    client.delete(job)
    return _out(options, {"deleted": job}, f"{job} was deleted")


def _confirm_halt(view: JobView) -> None:
    """Ask at the terminal before a halt that would lose the training. Raises NotAllowed without consent."""
    loss = next((action.confirm for action in view.actions if action.id is ActionId.HALT), None)
    if loss is None:
        return
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{view.id}: {loss} Halt it anyway? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return
        raise NotAllowed(f"{view.id} was not halted")
    raise NotAllowed(f"{view.id} was not halted. {loss} To halt it anyway: jupyter dlaas halt {view.id} --yes")


def _why(options: argparse.Namespace) -> int:
    client = _client(options)
    view = client.job(options.name)
    sentences = client.why(view.id)
    return _out(options, {"sentences": sentences}, terminal.why_text(view, sentences, _ink()))


def _story(options: argparse.Namespace) -> int:
    events = _client(options).story(options.name)
    text = "\n".join(f"{terminal.stamp(event['at_s'])}  {terminal.plain(event['text'])}" for event in events)
    return _out(options, {"events": events}, text or "No events yet.")


def _source(options: argparse.Namespace) -> int:
    source, files = _client(options).source(options.name)
    return _out(options, {"source": source, "files": files}, source.rstrip("\n"))


def _report(options: argparse.Namespace) -> int:
    text = _client(options).report(options.name)
    return _out(options, {"report": text}, text.rstrip("\n"))


def _check(options: argparse.Namespace) -> int:
    from jupyter_dlaas.cli.check import run  # only this verb reads notebooks

    return run(options.paths, options.cell, as_json=options.json, suggests=options.suggest)


def _serve(options: argparse.Namespace) -> int:
    endpoint = discovery.SocketEndpoint(discovery.pool_directory(options.pool), engine_idle_s=options.idle_s)
    command = discovery.engine_command(endpoint)
    print(
        f"Serving the pool in {endpoint.directory}. Ctrl-C stops the engine; jobs keep running.",
        file=sys.stderr,
        flush=True,
    )
    os.execv(command[0], command)  # noqa: S606  # an argument list, no shell


def _engine(options: argparse.Namespace) -> int:
    directory = discovery.pool_directory(options.pool)
    if options.what == "stop":
        pid = engine_control.stop(directory)
        text = f"Stopped the engine (process {pid}). Jobs keep running; the next command starts the engine again."
        return _out(options, {"stopped": pid}, text if pid else f"No engine is running for the pool in {directory}.")
    state = engine_control.state(directory)
    if state is None:
        return _out(options, {"running": False}, f"No engine is running for the pool in {directory}.") or 3
    version = state.get("version", "?")
    text = f"The engine of the pool in {directory} is running: process {state['pid']}, version {version}."
    return _out(options, {"running": True, **state}, text)


if __name__ == "__main__":
    raise SystemExit(main())
