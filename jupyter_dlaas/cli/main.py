"""`jupyter dlaas …`: the verbs of `%dlaas`, for a terminal. Each calls the public API and prints what it says.

Exit codes: 0 done, 1 the job that was waited for did not complete, 2 wrong usage, 3 there is no such job, 4 the job
cannot take that now (or never) or you may not, 5 no engine can answer, 130 detached by an interrupt.
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
    """Run one command; returns its exit code. Errors are sentences on stderr."""
    given = list(sys.argv[1:] if argv is None else argv)
    own, _dashes, script_args = _split(given)
    options = _parser().parse_args(own)
    options.args = script_args
    if script_args and options.verb != "submit":
        print("dlaas: only submit passes arguments on after --", file=sys.stderr)
        return 2
    try:
        done: int = options.run(options)
        sys.stdout.flush()
        return done
    except DlaasError as error:
        return _say(error, options)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return DETACHED


def _split(given: list[str]) -> tuple[list[str], str, list[str]]:
    if "--" not in given:
        return given, "", []
    at = given.index("--")
    return given[:at], "--", given[at + 1 :]


def _say(error: DlaasError, options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(error.as_json()))
    else:
        print(f"dlaas: {error}", file=sys.stderr)
    return next((code for kind, code in _CODES if isinstance(error, kind)), 5)


# ----------------------------------------------------------------------------------------------------------- the words


class _Verb(argparse.ArgumentParser):
    """Says itself what it does not know: else the usage of all verbs would be shown, and not its own."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(
                option_parsing.not_known(unknown[0], self._option_string_actions, else_see=f"{self.prog} --help")
            )
        return found, unknown


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="jupyter dlaas", description="Train scripts as jobs of a pool, and look after them."
    )
    top.add_argument("--version", action="version", version=f"jupyter_dlaas {__version__}")
    _common(top, json=False, pool=None)
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Verb)

    def verb(name: str, run: Callable[[argparse.Namespace], int], says: str, *, of_job: bool = False) -> Any:
        one = verbs.add_parser(name, help=says, description=says)
        _common(one, json=argparse.SUPPRESS, pool=argparse.SUPPRESS)
        if of_job:
            one.add_argument("name", metavar="NAME", help="a handle (resnet-48), or a name: its newest job")
        one.set_defaults(run=run)
        return one

    _submit_options(verb("submit", _submit, "Submit a script: submit FILE [options] [-- its own arguments]"))
    one = verb("jobs", _jobs, "All jobs, newest first")
    one.add_argument("--state", help="only these states, separated by commas")
    one.add_argument("--limit", type=int, default=30, help="at most so many (default: 30)")
    one = verb(
        "pool",
        _pool,
        "The pool: what there is, and who has it; its options change how it is shared",
    )
    one.add_argument(
        "--order",
        choices=[str(one) for one in PoolOrder],
        help="who goes first among jobs of one priority, from now on",
    )
    one.add_argument("--preemption", choices=("on", "off"), help="off: nobody who runs makes room for others")
    one.add_argument(
        "--placement",
        choices=[str(one) for one in PoolPlacement],
        help="how learners are laid over nodes, of jobs that do not say it themselves",
    )
    one.add_argument(
        "--spot-price", type=float, metavar="P", help="what a spot job's device counts in its queue: 0 to 1"
    )
    one.add_argument(
        "--spot-notice", metavar="30s", help="how long a spot job may take for a checkpoint when it is to go"
    )
    one = verb(
        "queue",
        _queue,
        "Who waits, first in line first; `queue list`, `queue set NAME`, `queue remove NAME`: the queues, their shares",
    )
    one.add_argument(
        "what", nargs="?", choices=("list", "set", "remove"), help="the queues with their shares; set one's; remove one"
    )
    one.add_argument("name", nargs="?", metavar="NAME", help="of the queue; set makes it where there is none")
    one.add_argument("--weight", type=float, metavar="W", help="its part of what nobody is guaranteed (default: 1)")
    one.add_argument("--guaranteed", type=int, metavar="N", help="devices it gets whenever it wants them (default: 0)")
    for name, run, says in (
        ("cordon", _cordon, "Place nothing new on a node; what runs there stays"),
        ("uncordon", _cordon, "Let a node take jobs again; ends a drain"),
        ("drain", _drain, "Empty a node: shrink elastic jobs, move the others, preempt (checkpoint, requeue) last"),
    ):
        one = verb(name, run, says)
        one.add_argument("node", metavar="NODE", help="as `jupyter dlaas pool` lists it")
        if name == "drain":
            one.add_argument("--dry-run", action="store_true", help="only show what would become of the jobs there")
    one = verb("logs", _logs, "What the learners wrote", of_job=True)
    one.add_argument("-f", "--follow", action="store_true", help="go on until the job is over; Ctrl-C detaches")
    one.add_argument("--member", type=int, help="only this learner")
    one = verb("scale", _scale, "Ask for so many learners, while it runs", of_job=True)
    one.add_argument("learners", metavar="N", help="number of learners")
    for name, says in (
        ("halt", "Write a checkpoint and give the devices back; asks first where none can be written"),
        ("resume", "Go on with a halted job"),
        ("cancel", "End a job for good"),
        ("checkpoint", "Write a checkpoint at the next step; training goes on"),
        ("retry", "The same again, as a new job"),
    ):
        one = verb(name, _act, says, of_job=True)
        if name == "halt":
            one.add_argument("--yes", action="store_true", help="halt it, too, if it starts over when it is resumed")
    verb("delete", _delete, "Remove an ended job: its record, log, checkpoints and results", of_job=True)
    verb("why", _why, "Why a job is where it is", of_job=True)
    verb("story", _story, "All that happened to a job", of_job=True)
    verb("attach", _attach, "Follow a job: its states and its log; Ctrl-C detaches", of_job=True)
    verb("source", _source, "A job's train.py", of_job=True)
    one = verb("check", _check, "What would notebooks' training cells take along, and what is missing? Runs nothing")
    one.add_argument("paths", nargs="+", metavar="NOTEBOOK", help="an .ipynb file, or a folder of them")
    one.add_argument("--cell", type=int, metavar="N", help="only the N-th code cell, whether it trains or not")
    one.add_argument("--suggest", action="store_true", help="which lines would let it grow and shrink, as a diff")
    verb("report", _report, "A job's spec, failure and last lines, to be sent to somebody; secrets masked", of_job=True)
    one = verb("serve", _serve, "Run the pool's engine here, in the foreground")
    one.add_argument("--idle-s", type=float, default=0.0, help="end after so many idle seconds (default: never)")
    one = verb("engine", _engine, "The pool's engine: is it running; stop it (jobs go on)")
    one.add_argument("what", choices=("status", "stop"), help="show whether it runs; stop it")
    return top


def _common(parser: argparse.ArgumentParser, *, json: Any, pool: Any) -> None:
    parser.add_argument("--json", action="store_true", default=json, help="for programs: JSON, as the REST API has it")
    parser.add_argument("--pool", default=pool, help="another pool: its name, or its directory (with a slash)")


def _submit_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("file", metavar="FILE", help="a Python script")
    one.add_argument("--name", help="the job's name (default: the file's)")
    one.add_argument("--gpus", metavar="N|MIN:MAX", help="GPUs, a learner each (CPU slots where there is no GPU)")
    one.add_argument("--learners", metavar="N|MIN:MAX", help="training processes")
    one.add_argument("--gpus-per-learner", metavar="K")
    one.add_argument("--cpus", type=float, metavar="N", help="CPUs per learner")
    one.add_argument("--memory", metavar="8G", help="memory per learner")
    one.add_argument("--gpu-kind", metavar="KIND", help="insist on GPUs whose name holds this")
    one.add_argument("--priority", default="normal", metavar="low|normal|high|INT")
    one.add_argument("--queue", default="default")
    one.add_argument("--spot", action="store_true", help="take only what is idle, count less, give it back when asked")
    one.add_argument("--placement", metavar="pack|spread", help="default: as the pool does")
    one.add_argument("--elastic", default="manual", metavar="off|manual|auto[:CONDITION]")
    one.add_argument("--schedule", action="append", default=[], metavar="'epoch 30: 4 gpus'", help="sizes by epoch")
    one.add_argument("--framework", help="default: found from the imports")
    one.add_argument("--epochs", metavar="N")
    one.add_argument("--max-time", metavar="2h", help="halt it, with a checkpoint, after training for so long")
    one.add_argument(
        "--hang-after",
        metavar="10m",
        help="end a learner that does nothing for so long (default: 30s or ten steps, in loops of steps)",
    )
    one.add_argument("-o", "--outputs", metavar="NAMES", help="variables to bring back: model,history")
    one.add_argument("--include", action="append", default=[], metavar="PATH", help="a file or folder to take along")
    one.add_argument("-e", "--env", action="append", default=[], metavar="K=V", help="a variable of the environment")
    one.add_argument(
        "--secret", action="append", default=[], metavar="NAME", help="a variable whose value is masked in logs"
    )
    one.add_argument("--retries", default=4, metavar="N")
    one.add_argument("--checkpoint-every", default=60.0, metavar="60s")
    one.add_argument("--metric", action="append", default=[], metavar="REGEX", help="read a metric from printed lines")
    one.add_argument("--autolog", default="on", metavar="on|off", help="on: curves from frameworks, bars and prints")
    one.add_argument("--directory", metavar="PATH", help="the job's working directory (default: this one)")
    one.add_argument("--interpreter", metavar="PYTHON", help="the Python that runs it (default: this one)")
    one.add_argument("--wait", action="store_true", help="follow it to its end; Ctrl-C detaches")
    one.add_argument("--dry-run", action="store_true", help="show what would be sent and what stands against it")


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
        return _out(options, view, f"{terminal.job_text(view, _ink())}\n  Its log: jupyter dlaas logs {view.id} -f")
    if not options.json:
        print(f"Submitted {view.id}. Ctrl-C detaches; the job goes on.", file=sys.stderr)
    return _follow(options, client, view)


def _dry_run(options: argparse.Namespace, prepared: jobs.Prepared, client: Client) -> int:
    submit = prepared.submit
    found: dict[str, Any] = {"problems": [], "estimate": "not asked, since large files would have to go first"}
    if not prepared.uploads:
        found = client.preflight(submit)
    shown = {"spec": submit.spec, "files": [one.path for one in submit.files], **found}
    problems = [str(one["text"]) for one in found["problems"]]
    size = f"{submit.spec.learners_min}-{submit.spec.learners_max} learners, {submit.spec.gpus_per_learner} GPU each"
    lines = [
        f"{submit.spec.name}: {size}; framework {submit.spec.framework or 'not known'}",
        f"  runs {submit.spec.interpreter} in {submit.spec.directory}",
        *(f"  takes {one.path}" for one in submit.files),
        *(f"  problem: {one}" for one in problems),
        f"  {found['estimate']}" if found["estimate"] else "  nothing was sent",
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
        text += f"\nAt most {options.limit}: those that run, the first in line, the newest. More with --limit."
    return _out(options, {"jobs": views}, text)


def _pool(options: argparse.Namespace) -> int:
    client = _client(options)
    notice = options.spot_notice
    asked: dict[str, Any] = {
        "order": options.order,
        "preemption": None if options.preemption is None else options.preemption == "on",
        "placement": options.placement,
        "spot_price": options.spot_price,
        "spot_notice_s": None if notice is None else option_parsing.duration_s(notice, option="spot notice"),
    }
    is_change = any(value is not None for value in asked.values())
    pool = client.change_pool(**asked) if is_change else client.pool()
    return _out(options, pool, terminal.pool_text(pool, _ink()))


def _queue(options: argparse.Namespace) -> int:
    client = _client(options)
    if options.what != "set" and (options.weight is not None or options.guaranteed is not None):
        raise Invalid("queue: --weight and --guaranteed go with `queue set NAME`")
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
        raise Invalid(f"queue {options.what}: name the queue, as in `queue {options.what} research{share}`")
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
    """Log lines to stdout, states to stderr, until the job is over. With `is_judged` a failure is the exit code."""
    reader = Follower(client, view.id, view=view)
    lines, last, ink = _lines(options, view), "", _ink(sys.stderr)
    try:
        for message in reader.messages():
            if message["type"] == "job" and reader.view is not None and not options.json:
                said = terminal.job_text(reader.view, ink)
                if shows_states and said != last:
                    print(said, file=sys.stderr, flush=True)
                last = said
            elif message["type"] != "metrics" or options.json:
                _print_log(options, lines, message)
    except KeyboardInterrupt:
        print(f"\nDetached: {view.id} goes on. See it again: jupyter dlaas attach {view.id}", file=sys.stderr)
        return DETACHED
    _rest(options, lines)
    over = reader.view or view
    if is_judged and over.state is not State.COMPLETED:
        raise jobs.JobFailed(over)
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
        _ask_before_halt(client.job(options.name))
    view = client.act(options.name, options.verb)
    return _out(options, view, terminal.job_text(view, _ink()))


def _delete(options: argparse.Namespace) -> int:
    client = _client(options)
    job = client.job(options.name).id
    client.delete(job)
    return _out(options, {"deleted": job}, f"{job} is deleted")


def _ask_before_halt(view: JobView) -> None:
    """Raise NotAllowed where a halt would lose the training, and nobody at a terminal agrees to that."""
    lost = next((action.confirm for action in view.actions if action.id is ActionId.HALT), None)
    if lost is None:
        return
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{view.id}: {lost} Halt it all the same? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return
        raise NotAllowed(f"{view.id} was not halted")
    raise NotAllowed(f"{view.id} was not halted. {lost} To halt it all the same: halt {view.id} --yes")


def _why(options: argparse.Namespace) -> int:
    client = _client(options)
    view = client.job(options.name)
    sentences = client.why(view.id)
    return _out(options, {"sentences": sentences}, terminal.why_text(view, sentences, _ink()))


def _story(options: argparse.Namespace) -> int:
    events = _client(options).story(options.name)
    text = "\n".join(f"{terminal.stamp(one['at_s'])}  {terminal.plain(one['text'])}" for one in events)
    return _out(options, {"events": events}, text or "Nothing has happened yet.")


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
    door = discovery.SocketDoor(discovery.pool_directory(options.pool), engine_idle_s=options.idle_s)
    command = discovery.engine_command(door)
    print(f"Serving the pool in {door.directory}. Ctrl-C ends the engine; jobs go on.", file=sys.stderr, flush=True)
    os.execv(command[0], command)  # noqa: S606  # an argument list, no shell


def _engine(options: argparse.Namespace) -> int:
    directory = discovery.pool_directory(options.pool)
    if options.what == "stop":
        pid = engine_control.stop(directory)
        said = f"Stopped the engine (process {pid}); jobs go on, and the next command starts it again."
        return _out(options, {"stopped": pid}, said if pid else f"No engine runs for the pool in {directory}.")
    state = engine_control.state(directory)
    if state is None:
        return _out(options, {"running": False}, f"No engine runs for the pool in {directory}.") or 3
    text = f"The engine of the pool in {directory} runs: process {state['pid']}, version {state.get('version', '?')}."
    return _out(options, {"running": True, **state}, text)


if __name__ == "__main__":
    raise SystemExit(main())
