"""Command line `jupyter dlaas …`: the verbs of `%dlaas` in a terminal. Each calls the public API and prints the result.

Exit codes: 0 success, 1 the followed job failed or was cancelled, 2 usage error or unknown pool, 3 job not found,
4 refused (not possible in the job's state, never possible on this pool, or not permitted), 5 no engine available,
6 the followed job is halted and can be resumed, 130 detached by an interrupt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from jupyter_dlaas.api import jobs, option_parsing, submission
from jupyter_dlaas.cli import job_actions, parser, pool_selection, streams, terminal
from jupyter_dlaas.cli.terminal import Ink
from jupyter_dlaas.client import discovery, engine_control
from jupyter_dlaas.client.follow import Follower, LogLines
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.display import formatting
from jupyter_dlaas.wire.codec import DlaasError, Invalid, encode
from jupyter_dlaas.wire.protocol import (
    Cursor,
    Forbidden,
    JobView,
    NotAllowed,
    NotFound,
    Refused,
    State,
    Unavailable,
)

__all__ = ["main"]

DETACHED: Final = 130
_WAITING: Final = (State.QUEUED, State.DEPLOYING, State.DOWNLOADING)
_CODES: Final[tuple[tuple[type[DlaasError], int], ...]] = (
    (jobs.JobFailed, 1),
    (jobs.JobHalted, 6),
    (Invalid, 2),
    (NotFound, 3),
    (NotAllowed, 4),
    (Forbidden, 4),
    (Refused, 4),
    (Unavailable, 5),
)


def main(argv: Sequence[str] | None = None, notes: TextIO | None = None) -> int:
    """Run one command and return its exit code. Errors are printed to stderr.

    `notes` receives what happens to a followed job, as it happens (default: stderr).
    """
    streams.prepare()
    given = list(sys.argv[1:] if argv is None else argv)
    own, _dashes, script_args = _split(given)
    options = parser.build().parse_args(own)
    options.args = script_args
    options.notes = notes or sys.stderr
    if options.verb is None:
        options.verb, options.state, options.limit, options.is_overview = "jobs", None, 30, True
    if script_args and options.verb != "submit":
        print("dlaas: only `submit` takes arguments after --", file=sys.stderr)
        return 2
    try:
        done = RUN[options.verb](options)
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
    return _code(error)


def _code(error: DlaasError) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), 5)


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
    """Return a client of the chosen pool. Raise Invalid at once if it has to exist and does not."""
    discovery.existing_pool(options.pool)
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
    prepared = submission.prepare(Path(options.file), **{name: getattr(options, name) for name in _SPEC})
    client = _client(options)
    if options.dry_run:
        return _dry_run(options, prepared, client)
    view = prepared.send(client)
    if not options.wait:
        return _out(options, view, f"{terminal.job_text(view, _ink())}\n  Log: jupyter dlaas logs {view.id} -f")
    if not options.json:
        print(f"Submitted {view.id}. Ctrl-C detaches; the job keeps running.", file=sys.stderr)
    return _follow(options, client, view)


def _dry_run(options: argparse.Namespace, prepared: submission.Prepared, client: Client) -> int:
    submit = prepared.submit
    found: dict[str, Any] = {"problems": [], "estimate": "no estimate: files would have to be uploaded first"}
    if not prepared.uploads:
        found = client.preflight(submit)
    shown = {"spec": submit.spec, "files": [file.path for file in submit.files], **found}
    problems = [str(problem["text"]) for problem in found["problems"]]
    spec = submit.spec
    sizes = dict.fromkeys((spec.learners_min, spec.learners_max))
    size = f"{' to '.join(map(str, sizes))} learner{'' if spec.learners_max == 1 else 's'}"
    each = f"{spec.gpus_per_learner} GPU (or CPU slot) each" if spec.gpus_per_learner else "no GPU"
    lines = [
        f"{spec.name}: {size}, {each}; framework {spec.framework or 'unknown'}",
        f"  runs {spec.interpreter} in {spec.directory}",
        *(f"  sends {file.path}" for file in submit.files),
        *([f"  returns {', '.join(spec.outputs)}"] if spec.outputs else []),
        *(f"  problem: {problem}" for problem in problems),
        *([f"  {found['estimate']}"] if found["estimate"] else []),
        "Nothing was submitted (--dry-run).",
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
    if "is_overview" in options:
        text += "\n\nTo submit a script: jupyter dlaas submit train.py --gpus 1:4. For all verbs: jupyter dlaas --help"
    return _out(options, {"jobs": views}, text)


def _pool(options: argparse.Namespace) -> int:
    notice = options.spot_notice
    changes: dict[str, Any] = {
        "order": options.order,
        "preemption": None if options.preemption is None else options.preemption == "on",
        "placement": options.placement,
        "spot_price": options.spot_price,
        "spot_notice_s": None if notice is None else option_parsing.duration_s(notice, option="spot notice"),
    }
    is_change = any(value is not None for value in changes.values())
    pool_selection.check_usage(options)
    if options.what is not None and is_change:
        raise Invalid(
            f"pool {options.what}: change scheduling settings in a separate command, such as `pool --order fair`"
        )
    if options.what == "use":
        code = pool_selection.use(options)
        if code != 0:
            return code
    client = _client(options)
    if options.what == "events":
        return _print_events(options, client.pool_events())
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
    if not (reader.cursor.logs or options.json):
        _print_note(options, f"The log is empty.\n{terminal.job_text(view, _ink(options.notes))}")
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


def _print_note(options: argparse.Namespace, text: str) -> None:
    print(text, file=options.notes, flush=True)


def _follow(
    options: argparse.Namespace, client: Client, view: JobView, *, is_judged: bool = True, shows_states: bool = True
) -> int:
    """Print log lines to stdout and states to stderr until the job has ended or is halted.

    Raise JobFailed or JobHalted with `is_judged`. Without `shows_states`, states are printed only while the job waits.
    """
    reader = Follower(client, view.id, view=view, ends_at_halt=True)
    lines, last, ink = _lines(options, view), "", _ink(options.notes)

    def show(now: JobView, last: str) -> str:
        text = terminal.job_text(now, ink)
        if text != last and not options.json and (shows_states or now.state in _WAITING):
            _print_note(options, text)
        return text

    try:
        last = show(view, last)
        for message in reader.messages():
            if message["type"] == "job" and reader.view is not None and not options.json:
                last = show(reader.view, last)
            elif message["type"] != "metrics" or options.json:
                _print_log(options, lines, message)
    except KeyboardInterrupt:
        goes_on = "stays in the queue" if (reader.view or view).state is State.QUEUED else "keeps running"
        print(f"\nDetached: {view.id} {goes_on}. To follow it: jupyter dlaas attach {view.id}", file=sys.stderr)
        return DETACHED
    _rest(options, lines)
    final = reader.view or view
    halted = jobs.JobHalted(final, f"jupyter dlaas resume {final.id}") if final.state is State.HALTED else None
    if is_judged and final.state is not State.COMPLETED:
        raise halted or jobs.JobFailed(final)
    if halted is not None:
        _print_note(options, str(halted))
    return 0


def _attach(options: argparse.Namespace) -> int:
    client = _client(options)
    return _follow(options, client, client.job(options.name))


def _scale(options: argparse.Namespace) -> int:
    job = jobs.Job(options.name, _client(options)).scale(options.learners)
    return _out(options, job.last_view, terminal.job_text(job.last_view, _ink()))


def _priority(options: argparse.Namespace) -> int:
    client = _client(options)
    view = client.change(options.name, priority=option_parsing.priority(options.priority))
    return _out(options, view, f"{terminal.job_text(view, _ink())}\n  Priority: {view.priority}")


def _change(options: argparse.Namespace) -> int:
    client = _client(options)
    if options.state is None and len(options.names) == 1:
        return job_actions.change(options, client, _ink())
    outcome = job_actions.change_several(options, client, _ink())
    return next((_code(error) for error in outcome.errors.values()), 0)


def _why(options: argparse.Namespace) -> int:
    client = _client(options)
    view = client.job(options.name)
    sentences = client.why(view.id)
    return _out(options, {"sentences": sentences}, terminal.why_text(view, sentences, _ink()))


def _events(options: argparse.Namespace) -> int:
    return _print_events(options, _client(options).events(options.name))


def _print_events(options: argparse.Namespace, events: list[dict[str, Any]]) -> int:
    text = "\n".join(f"{terminal.stamp(event['at_s'])}  {terminal.plain(event['text'])}" for event in events)
    return _out(options, {"events": events}, text or "No events yet.")


def _source(options: argparse.Namespace) -> int:
    source, files = _client(options).source(options.name)
    return _out(options, {"source": source, "files": files}, source.rstrip("\n"))


def _report(options: argparse.Namespace) -> int:
    text = _client(options).report(options.name)
    return _out(options, {"report": text}, text.rstrip("\n"))


def _metrics(options: argparse.Namespace) -> int:
    client = _client(options)
    rows = jobs.Job(client.job(options.name), client).metrics()
    if options.all or options.json:
        for row in rows:
            print(json.dumps(encode(row)))
        return 0
    print(terminal.metrics_table(rows))
    return 0


def _results(options: argparse.Namespace) -> int:
    view = _client(options).job(options.name)
    return _out(options, {"results": view.results}, terminal.results_text(view))


def _artifacts(options: argparse.Namespace) -> int:
    client = _client(options)
    job = client.job(options.name).id
    if options.path is None:
        if options.output is not None:
            raise Invalid("artifacts: --output requires the path of one file, as listed without it")
        files = client.artifacts(job)
        return _out(options, {"artifacts": files}, terminal.artifacts_table(files))
    target = option_parsing.path(options.output or Path(options.path).name, option="artifacts")
    content = client.artifact(job, options.path)
    try:
        target.write_bytes(content)
    except OSError as error:
        raise Invalid(f"artifacts: cannot write {target}: {error.strerror or error}") from None
    return _out(
        options,
        {"path": str(target), "bytes": len(content)},
        f"Wrote {target} ({formatting.bytes_text(len(content))}).",
    )


def _check(options: argparse.Namespace) -> int:
    from jupyter_dlaas.cli.check import run  # only this verb reads notebooks

    return run(options.paths, options.cell, as_json=options.json, suggests=options.suggest)


def _serve(options: argparse.Namespace) -> int:
    endpoint = discovery.SocketEndpoint(discovery.existing_pool(options.pool), engine_idle_s=options.idle_s)
    command = discovery.engine_command(endpoint)
    print(
        f"Serving the pool in {endpoint.directory}. Ctrl-C stops the engine; jobs keep running.",
        file=sys.stderr,
        flush=True,
    )
    os.execv(command[0], command)  # noqa: S606  # an argument list, no shell


def _k8s(options: argparse.Namespace) -> int:
    import subprocess  # only this verb starts a program

    given = list(options.arguments or ["--help"])
    given += ["--json"] if options.json and given[0] == "check" and "--json" not in given else []
    return subprocess.call([sys.executable, "-m", "dlaas_server.pools.kubernetes", *given])


def _engine(options: argparse.Namespace) -> int:
    directory = discovery.existing_pool(options.pool)
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


RUN: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "submit": _submit,
    "jobs": _jobs,
    "attach": _attach,
    "logs": _logs,
    "why": _why,
    "events": _events,
    "scale": _scale,
    "priority": _priority,
    "halt": _change,
    "resume": _change,
    "checkpoint": _change,
    "cancel": _change,
    "retry": _change,
    "delete": _change,
    "metrics": _metrics,
    "results": _results,
    "artifacts": _artifacts,
    "source": _source,
    "report": _report,
    "pool": _pool,
    "queue": _queue,
    "cordon": _cordon,
    "uncordon": _cordon,
    "drain": _drain,
    "engine": _engine,
    "serve": _serve,
    "check": _check,
    "k8s": _k8s,
}


if __name__ == "__main__":
    raise SystemExit(main())
