"""What plain Python can do: `submit`, `train`, `jobs`, `job`, `pool`, `result`, and `Job`.

    import jupyter_dlaas as dlaas
    job = dlaas.submit("train.py", gpus="1:4")
    job.wait()
    history = job.result("history")

The magics and the command line call these and nothing else, so whatever they can do, plain Python can do.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

from jupyter_dlaas.api import option_parsing, sources
from jupyter_dlaas.api.package_data import package_data
from jupyter_dlaas.client.follow import Follower, LogLines
from jupyter_dlaas.client.http import Client, new_key
from jupyter_dlaas.runtime.system.hash_seed import DEFAULT as DEFAULT_HASH_SEED
from jupyter_dlaas.runtime.system.hash_seed import VARIABLE as HASH_SEED
from jupyter_dlaas.runtime.system.hash_seed import hash_seed_of, own_hash_seed
from jupyter_dlaas.wire.codec import DlaasError, Invalid, decode_float
from jupyter_dlaas.wire.protocol import (
    Cursor,
    File,
    JobSpec,
    JobView,
    NotAllowed,
    Note,
    Origin,
    Placement,
    PoolView,
    Refused,
    State,
    Submit,
)
from jupyter_dlaas.wire.secret_masking import SECRETS, named_secrets

__all__ = ["Job", "JobFailed", "Prepared", "job", "jobs", "pool", "prepare", "result", "submit", "train"]

P = ParamSpec("P")
R = TypeVar("R")
Bounds = int | str | tuple[int, int]


class JobFailed(DlaasError):
    """A job that was waited for did not complete. The message says what, where and what to do."""

    code = "job_failed"

    def __init__(self, view: JobView) -> None:
        super().__init__(failure_text(view))
        self.view = view


def failure_text(view: JobView) -> str:
    """What, where, what to do; always in this order."""
    if view.failure is None:
        return f"{view.id} is {view.state}: {view.reason or view.status_line or 'nothing is known about why'}"
    failure = view.failure
    lines = [f"{view.id} failed ({failure.cause}): {failure.what}"]
    if failure.where is not None:
        lines.append(f"Where: {failure.where.text}")
        first = failure.where.first_line
        for at, text in enumerate(failure.where.source, first):
            lines.append(f"  {'->' if at == failure.where.line else '  '} {at:>4}  {text}")
    if failure.advice:
        lines.append(f"What to do: {failure.advice}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A submit that is ready to go, and the files (by SHA-256) that must be sent before it."""

    submit: Submit
    uploads: Mapping[str, Path]

    def send(self, client: Client) -> Job:
        """Upload what is needed, then submit. May be called again: the same key gives the same job.

        Where files must be sent, the pool is asked first whether it could ever run the job. Raises Refused.
        """
        if self.uploads:
            sizes = replace(self.submit, files=())
            problems = cast("list[dict[str, str]]", client.preflight(sizes)["problems"])
            if problems:
                raise Refused(problems[0]["text"])
        for path in self.uploads.values():
            client.put_blob(path)
        return Job(client.submit(self.submit), client)


def prepare(
    source: str | Path,
    *,
    name: str | None = None,
    gpus: Bounds | None = None,
    learners: Bounds | None = None,
    gpus_per_learner: int | str | None = None,
    cpus: float | None = None,
    memory: int | str | None = None,
    gpu_kind: str | None = None,
    priority: int | str = "normal",
    queue: str = "default",
    spot: bool = False,
    placement: str | None = None,
    elastic: str = "manual",
    schedule: str | Iterable[str] | None = None,
    framework: str | None = None,
    epochs: int | None = None,
    max_time: float | str | None = None,
    hang_after: float | str | None = None,
    outputs: str | Iterable[str] | None = None,
    include: Iterable[str | Path] = (),
    env: Mapping[str, str] | Iterable[str] | None = None,
    secret: str | Iterable[str] | None = None,
    retries: int = 4,
    checkpoint_every: float | str = 60.0,
    metric: str | Iterable[str] | None = None,
    autolog: bool | str = True,
    directory: str | Path | None = None,
    interpreter: str | None = None,
    args: Sequence[str] = (),
    start_with: int | None = None,
    environment: Mapping[str, str] | None = None,
    files: Sequence[File] = (),
    uploads: Mapping[str, Path] | None = None,
    origin: Origin | None = None,
    notes: Sequence[Note] = (),
    cells: Mapping[str, str] | None = None,
    key: str | None = None,
) -> Prepared:
    """Make a submit of a script (path) or of source text, and send nothing.

    `gpus="1:4"`: one to four GPUs, a learner each; `learners` and `gpus_per_learner` say the same in learners.
    `memory` ("8G") and `cpus` are per learner; `max_time`, `hang_after` and `checkpoint_every` are seconds or "2h".
    `hang_after`: how long a learner may do nothing at all before it is ended. `outputs`: names of the program whose
    values come back. The job runs with this Python, in this directory, with this environment (without Jupyter's own
    variables), unless `interpreter`, `directory`, `environment` say otherwise; `env` is added.
    `secret`: names of variables that go along and whose values are masked in logs, reports and all that is shown.
    `elastic`: who chooses the size while it runs: "off" (nobody), "manual" (you), "auto" (how fast it is at each size;
    "auto:efficiency=0.2" and others, see `words.elastic`). `schedule="epoch 30: 4 gpus"`: sizes by epoch.
    `spot=True`: it takes only what ordinary jobs leave idle, counts less, and gives devices back when one needs them.
    `args` are the script's own arguments. `autolog="off"`: curves of `run.log` and `metric` alone. Modules beside
    a script travel with it, `include` names other files.

    `files`, `uploads`, `origin`, `notes`, `cells` are for those who make programs of cells. Raises Invalid, which names
    the option.
    """
    around = os.environ if environment is None else environment
    secrets = option_parsing.secrets(secret, around)
    hidden = {SECRETS: ",".join(sorted({*named_secrets(around), *secrets}))}
    script = sources.read_script(source)
    folder = Path(directory or Path.cwd()).expanduser().absolute()
    travelling = sources.included(include, folder)
    if script.path is not None:
        modules = sources.own_modules(script.text, script.path.parent, script.path)
        data = package_data(script.text, modules)
        travelling = {**data.files, **modules, **travelling}
        files, notes = (*files, *data.inputs()), (*notes, *data.notes)
    parcel = sources.pack(travelling)
    size = option_parsing.sizes(gpus, learners, gpus_per_learner)
    sizing = option_parsing.elastic(elastic)
    spec = JobSpec(
        name=name or (option_parsing.job_name(script.path.name) if script.path is not None else "train"),
        learners_min=size.learners_min,
        learners_max=size.learners_max,
        gpus_per_learner=size.gpus_per_learner,
        cpus_per_learner=0.0 if cpus is None else float(cpus),
        memory_bytes_per_learner=0 if memory is None else option_parsing.memory_bytes(memory),
        gpu_kind=gpu_kind,
        priority=option_parsing.priority(priority),
        queue=queue,
        spot=spot,
        placement=None if placement is None else _placement(placement),
        elastic=sizing.elastic,
        condition=sizing.condition,
        condition_value=sizing.condition_value,
        price_per_h=sizing.price_per_h,
        schedule=option_parsing.schedule(schedule, size.gpus_per_learner),
        framework=framework or option_parsing.framework_of(script.text),
        epochs=None if epochs is None else option_parsing.count(epochs, option="epochs"),
        max_time_s=None if max_time is None else option_parsing.duration_s(max_time, option="max time"),
        hang_after_s=None if hang_after is None else option_parsing.duration_s(hang_after, option="hang after"),
        checkpoint_every_s=option_parsing.duration_s(checkpoint_every, option="checkpoint every"),
        retries=option_parsing.whole(retries, option="retries"),
        outputs=option_parsing.names(outputs),
        metric_patterns=(metric,) if isinstance(metric, str) else tuple(metric or ()),
        autolog=option_parsing.on_off(autolog, option="autolog"),
        command=tuple(str(one) for one in args),
        interpreter=interpreter or sys.executable,
        directory=str(folder),
        origin=origin or Origin(),
        notes=tuple(notes),
        cells=dict(cells or {}),
    )
    submit = Submit(
        key=key or new_key(),
        spec=spec,
        source=script.text,
        files=(*files, *parcel.files),
        environment={
            **option_parsing.without_jupyter(around),
            HASH_SEED: hash_seed_of(environment) if environment is not None else own_hash_seed() or DEFAULT_HASH_SEED,
            **option_parsing.environment(env),
            **secrets,
            **{name: names for name, names in hidden.items() if names},
        },
        learners=start_with,
    )
    return Prepared(submit=submit, uploads={**(parcel.uploads or {}), **(uploads or {})})


def _placement(text: str) -> Placement:
    try:
        return Placement(text)
    except ValueError:
        raise Invalid(f"placement: {text!r} is none of {', '.join(Placement)}") from None


def submit(source: str | Path, *, wait: bool = False, client: Client | None = None, **options: Any) -> Job:
    """Submit a script (path) or source text as a job, and return at once with it.

    Options are those of `prepare`: `submit("train.py", gpus="1:4", priority="high", outputs="model,history")`. With
    `wait=True` it returns when the job has completed, and raises JobFailed when it has not.
    """
    made = prepare(source, **options).send(client or Client())
    return made.wait() if wait else made


def jobs(*, state: str | None = None, owner: str | None = None, limit: int | None = None) -> list[Job]:
    """Jobs of the pool, newest first. `state`: one or more states, separated by commas."""
    client = Client()
    return [Job(view, client) for view in client.jobs(state=state, owner=owner, limit=limit)]


def job(name: str) -> Job:
    """A job by its handle ("resnet-48"), or the newest of that name ("resnet"). Raises NotFound."""
    client = Client()
    return Job(client.job(name), client)


def pool() -> PoolView:
    """The pool: its nodes and devices, who has them, who waits."""
    return Client().pool()


class NotRestored(DlaasError):
    """The state of a result does not fit the object that it was to be loaded into."""

    code = "not_restored"


def result(handle: str, *names: str, into: Mapping[str, object] | None = None) -> Any:
    """Load results of a completed job: one object for one name, else a tuple. Raises NotFound.

    Names whose values share objects come as one graph: `model, opt = dlaas.result("resnet-48", "model", "opt")` gives
    an optimiser over the weights of that very model. `into={"model": model}` loads the state into the model that is
    there, so that what refers to it stays connected; raises NotRestored where it does not fit.
    """
    found = _load(Client(), handle, names)
    if into is not None:
        restored = _part("jupyter_dlaas.transfer.result_restore").restore(
            found, into, with_weights=True, changed={*into}
        )
        for name in into:
            if name not in restored.kept:
                why = restored.reason or "it has no state of its own that could be loaded"
                raise NotRestored(
                    f"{name} of {handle} cannot be loaded into the `{name}` that is there: {why}. Send both by value "
                    f"from the notebook (--push {name}), or make it anew in the training cell."
                )
        found = restored.values
    return found[names[0]] if len(names) == 1 else tuple(found[name] for name in names)


def _load(client: Client, handle: str, names: Iterable[str]) -> dict[str, Any]:
    results = _part("jupyter_dlaas.transfer.results")
    found: dict[str, Any] = {}
    for name in names:
        if name not in found:
            versions = functools.partial(results.versions_of, client, handle)
            source = lambda: client.source(handle)[0]  # noqa: E731 - asked for only where a class is missing
            found |= results.load_graph(name, client.result(handle, name), source, _warn_of_versions, versions)
    return found


def _warn_of_versions(names: frozenset[str]) -> None:
    """Report classes of own modules; for those of a notebook the job's own are taken."""
    if others := sorted(name for name in names if "." in name):
        warnings.warn(
            f"{', '.join(others)}: another version here than in the job; the result is loaded into this one",
            stacklevel=6,
        )


def _part(name: str) -> Any:
    """A part of the house that is loaded by name and only when asked for: the arrows point from it to here."""
    return importlib.import_module(name)


class Job:
    """One job. What it says is asked from the engine when it is read; nothing is kept but the last view."""

    def __init__(self, view: JobView | str, client: Client | None = None) -> None:
        self._client = client or Client()
        self._view = self._client.job(view) if isinstance(view, str) else view

    @property
    def client(self) -> Client:
        """The client that asks for this job."""
        return self._client

    @property
    def id(self) -> str:
        """The handle: "resnet-48"."""
        return self._view.id

    @property
    def name(self) -> str:
        """The name, which later jobs may share: "resnet"."""
        return self._view.name

    @property
    def view(self) -> JobView:
        """The job as it is now."""
        self._view = self._client.job(self.id)
        return self._view

    @property
    def last_view(self) -> JobView:
        """The job as it was when last asked; nothing is sent."""
        return self._view

    @property
    def status(self) -> str:
        """The state now: QUEUED, DEPLOYING, PROCESSING, COMPLETED, …"""
        return str(self.view.state)

    @property
    def directory(self) -> Path:
        """Where the job keeps its files."""
        return Path(self._view.directory)

    def wait(self, timeout: float | None = None, *, raise_on_failure: bool = True) -> Job:
        """Wait until the job is over; a halted job is waited for, since it may be resumed.

        Raises TimeoutError after `timeout` seconds, JobFailed when the job failed or was cancelled (not with
        `raise_on_failure=False`). An interrupt leaves the job alone.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        cursor = Cursor(row=self._view.row)
        while not self._view.state.is_final:
            left_s = 20.0 if deadline_s is None else deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{self.id} is still {self._view.state} after {timeout:g} s; it goes on")
            reader = Follower(self._client, self.id, cursor, ("view",), wait_s=min(20.0, left_s), view=self._view)
            for _ in reader.once():
                pass
            cursor, self._view = reader.cursor, reader.view or self._view
        if raise_on_failure and self._view.state is not State.COMPLETED:
            raise JobFailed(self._view)
        return self

    def scale(self, learners: int) -> Job:
        """Ask for so many learners; the job grows or shrinks while it runs."""
        self._view = self._client.change(self.id, learners=option_parsing.count(learners, option="learners"))
        return self

    def set_priority(self, priority: int | str) -> Job:
        """low, normal, high or a number."""
        self._view = self._client.change(self.id, priority=option_parsing.priority(priority))
        return self

    def halt(self) -> Job:
        """Write a checkpoint and give the devices back; `resume` goes on there.

        A plain loop writes no checkpoint: `resume` starts it over. Its `view().actions` say so in `confirm`.
        """
        return self._act("halt")

    def resume(self) -> Job:
        """Put a halted job back into the queue."""
        return self._act("resume")

    def cancel(self) -> Job:
        """End the job for good."""
        return self._act("cancel")

    def checkpoint(self) -> Job:
        """Write a checkpoint at the next step; training goes on. Raises NotAllowed where nothing trains."""
        return self._act("checkpoint")

    def _act(self, verb: str) -> Job:
        self._view = self._client.act(self.id, verb)
        return self

    def retry(self) -> Job:
        """The same source and spec as a new job, which is returned."""
        return Job(self._client.act(self.id, "retry"), self._client)

    def follow(self, cursor: Cursor | None = None) -> Follower:
        """The job's messages as they come (views, log, metrics); survives restarts of everything."""
        return Follower(self._client, self.id, cursor or Cursor())

    @overload
    def logs(self, follow: Literal[False] = False, *, member: int | None = None) -> str: ...

    @overload
    def logs(self, follow: Literal[True], *, member: int | None = None) -> Iterator[str]: ...

    def logs(self, follow: bool = False, *, member: int | None = None) -> str | Iterator[str]:
        """What the learners wrote so far, as text; with `follow=True` its lines as they come, until the job is over.

        Lines of several learners are marked with their number ("L4"); `member` takes one learner's alone.
        """
        return self._lines(member) if follow else "".join(line + "\n" for line in self._written(member))

    def _lines(self, member: int | None) -> Iterator[str]:
        lines = LogLines(is_marked=self._view.size.max > 1 and member is None, member=member)
        for message in self.follow().messages():
            yield from lines.feed(message)
        yield from lines.rest()

    def _written(self, member: int | None) -> Iterator[str]:
        lines = LogLines(is_marked=self._view.size.max > 1 and member is None, member=member)
        reader = Follower(self._client, self.id, Cursor(), ("view", "log"), wait_s=0.0)
        has_more = True
        while has_more:
            has_more = False
            for message in reader.once():
                has_more = has_more or message["type"] in ("job", "log")
                yield from lines.feed(message)
        yield from lines.rest()

    def metrics(self) -> list[dict[str, Any]]:
        """All that was logged, a row per step: `step`, `epoch`, `time` and the values; good for a DataFrame.

        What was logged for steps that a restart trained again counts once.
        """
        rows: list[dict[str, Any]] = []
        offset, size = 0, 1
        while offset < size:
            found = self._client.metrics(self.id, offset)
            for record in found["records"]:
                if "rewind" in record:
                    rows = [row for row in rows if row["step"] is None or row["step"] <= record["rewind"]]
                    continue
                head = {"step": record.get("step"), "epoch": record.get("epoch"), "time": record.get("t")}
                rows.append(head | {name: decode_float(value) for name, value in record.get("values", {}).items()})
            if found["to"] <= offset:
                break
            offset, size = found["to"], found["size"]
        return rows

    def result(self, name: str | None = None) -> Any:
        """The value of one result, or (without a name) all of them as a dict. Raises NotAllowed until it completed.

        Results that share objects come as one graph where they are loaded together.
        """
        view = self._view if self._view.state.is_final else self.view
        if view.state is not State.COMPLETED and (name is None or name not in view.results):
            raise NotAllowed(f"{self.id} is {view.state}; its results are there when it has completed: job.wait()")
        if name is not None:
            return _load(self._client, self.id, (name,))[name]
        return {one: value for one, value in _load(self._client, self.id, view.results).items() if one in view.results}

    def why(self) -> str:
        """Why the job is where it is."""
        return "\n".join(self._client.why(self.id))

    def story(self) -> str:
        """All that happened to the job, a line each."""
        events = self._client.story(self.id)
        return "\n".join(f"{time.strftime('%H:%M:%S', time.localtime(e['at_s']))}  {e['text']}" for e in events)

    def source(self) -> str:
        """The job's train.py."""
        return self._client.source(self.id)[0]

    def artifacts(self) -> dict[str, int]:
        """Files that the job wrote: path to size in bytes."""
        return {str(one["path"]): int(one["bytes"]) for one in self._client.artifacts(self.id)}

    def artifact(self, path: str) -> bytes:
        """The bytes of one artifact."""
        return self._client.artifact(self.id, path)

    def report(self) -> str:
        """Spec, versions, failure and last log lines as text, to be sent to somebody; secrets are masked."""
        return self._client.report(self.id)

    def delete(self) -> None:
        """Remove an ended job's record and its directory."""
        self._client.delete(self.id)

    def widget(self) -> Any:
        """The job as an ipywidgets view, for front ends that cannot load our extension."""
        return _part("jupyter_dlaas.display.widget").widget(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return _part("jupyter_dlaas.display.html").mimebundle(self)

    def __repr__(self) -> str:
        view = self._view
        gist = " ".join(part for part in (view.status_line, view.reason) if part)
        return f"<Job {view.id} {view.state}{': ' + gist if gist else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)


@overload
def train(function: Callable[P, R], /) -> Callable[P, Job]: ...


@overload
def train(**options: Any) -> Callable[[Callable[P, R]], Callable[P, Job]]: ...


def train(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """A function of a module or script as a job: calling it submits it, and returns the Job.

        @dlaas.train(gpus="1:4", outputs="returned")
        def fit(epochs, lr=0.1): ...

        if __name__ == "__main__":
            job = fit(30, lr=0.05)

    Options are those of `submit`. The job imports the function's module and calls the function there; its value is
    named `returned`. Arguments must be plain values (numbers, text, lists, dicts). Inside a job the function is called
    directly; `fit.__wrapped__` does that anywhere. In a notebook use `%%train`.
    """
    if function is None:
        return lambda one: _decorated(one, options)
    return _decorated(function, options)


def _decorated(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    from jupyter_dlaas.api import decorator

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if decorator.is_in_job():
            return function(*args, **kwargs)
        text, named = decorator.program_of(function, args, kwargs)
        data = package_data(text, named)
        parcel = sources.pack({**data.files, **named})
        given = dict(options)
        given.setdefault("name", option_parsing.job_name(function.__name__))
        given.setdefault("framework", decorator.framework_of(function))
        given["files"] = (*given.get("files", ()), *parcel.files, *data.inputs())
        given["notes"] = (*given.get("notes", ()), *data.notes)
        given["uploads"] = {**(given.get("uploads") or {}), **(parcel.uploads or {})}
        return submit(text, **given)

    return call
