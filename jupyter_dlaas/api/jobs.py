"""Public functions `submit`, `train`, `jobs`, `job`, `pool`, `result` and the class `Job`.

    import jupyter_dlaas as dlaas
    job = dlaas.submit("train.py", gpus="1:4")
    job.wait()
    history = job.result("history")

The magics and the command line call only these, so plain Python can do whatever they can do.
"""

from __future__ import annotations

import functools
import importlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, TypeVar, overload

from jupyter_dlaas.api import option_parsing, sources
from jupyter_dlaas.api.package_data import package_data
from jupyter_dlaas.api.submission import Bounds, Prepared, prepare
from jupyter_dlaas.client.follow import Follower, LogLines
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.codec import DlaasError, decode_float
from jupyter_dlaas.wire.protocol import (
    Cursor,
    JobView,
    NotAllowed,
    PoolView,
    State,
)

__all__ = ["Job", "JobFailed", "JobHalted", "job", "jobs", "pool", "result", "send", "submit", "train"]

P = ParamSpec("P")
R = TypeVar("R")
end_listeners: Final[list[Callable[[Job], object]]] = []
"""Functions called when a caller of `Job` learns that the job has ended, in its thread, before the call returns."""


class JobFailed(DlaasError):
    """Error of a job that did not complete. The message names the failure, its place and the advice.

    `view` is the last view of the job.
    """

    code = "job_failed"

    def __init__(self, view: JobView) -> None:
        super().__init__(failure_text(view))
        self.view = view


class JobHalted(DlaasError):
    """Error of a job that is halted while a caller waits for its end. It can be resumed.

    `view` is the last view of the job.
    """

    code = "job_halted"

    def __init__(self, view: JobView, command: str) -> None:
        super().__init__(halted_text(view, command))
        self.view = view


def halted_text(view: JobView, command: str) -> str:
    """Return who halted a job, at which step, and the command that resumes it."""
    said = f"{view.id} was halted {view.status_line}".rstrip() + "."
    return " ".join(part for part in (said, view.reason, f"To resume it: {command}") if part)


def failure_text(view: JobView) -> str:
    """Format a job's failure, its place in the source and the advice, in this order."""
    if view.failure is None:
        return f"{view.id} is {view.state}: {view.reason or view.status_line or 'no reason is known'}"
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


def submit(
    source: str | Path,
    *,
    wait: bool = False,
    client: Client | None = None,
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
    include: str | Path | Iterable[str | Path] = (),
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
) -> Job:
    """Submit a script (path) or source text as a job and return the job immediately.

    Example: `job = dlaas.submit("train.py", gpus="1:4", priority="high", outputs="model,history")`

    Size: `gpus="1:4"` requests one to four GPUs, one learner each; `learners` and `gpus_per_learner` count learners
    instead. `cpus` and `memory` ("8G") are per learner. `gpu_kind`: a text that the GPU's name must contain.
    `placement`: "pack" or "spread". `start_with`: learners at the start, if not as many as are free.

    Resizing: `elastic` is "off", "manual" (by your requests) or "auto" (by measured speed, such as
    "auto:efficiency=0.2"). `schedule="epoch 30: 4 gpus"` sets sizes by epoch.

    Scheduling: `priority` is "low", "normal", "high" or a number, `queue` the queue that accounts for the devices.
    `spot=True`: use only idle devices. `epochs`: the number of epochs, for estimates. `max_time`: halt the job with a
    checkpoint after this much training time. Times are seconds or texts such as "2h".

    Failures: `retries` limits the restarts after failures that may be transient. `hang_after`: end a learner that
    makes no progress for this long. `checkpoint_every`: time between checkpoints.

    Program: `name` is the job's name (default: the script's), `args` the script's arguments, `directory` its working
    directory, `interpreter` its Python (default: the current ones). `include`: files and folders to send, relative to
    `directory`. `env`: environment variables to add; `secret`: names of variables whose values are masked.
    `framework`: "torch", "jax" or "tensorflow" (default: detected from the imports).

    Output: `outputs` names the variables to return as results. `metric`: a regular expression that reads a metric from
    printed lines. `autolog=False`: no other metrics than these and those of `run.log`.

    With `wait=True`, wait until the job has completed. `client` is the connection to the pool (default: this user's).
    Raises Invalid, which names the option; with `wait=True` also JobFailed or JobHalted, if the job does not complete.
    """
    prepared = prepare(
        source,
        name=name,
        gpus=gpus,
        learners=learners,
        gpus_per_learner=gpus_per_learner,
        cpus=cpus,
        memory=memory,
        gpu_kind=gpu_kind,
        priority=priority,
        queue=queue,
        spot=spot,
        placement=placement,
        elastic=elastic,
        schedule=schedule,
        framework=framework,
        epochs=epochs,
        max_time=max_time,
        hang_after=hang_after,
        outputs=outputs,
        include=include,
        env=env,
        secret=secret,
        retries=retries,
        checkpoint_every=checkpoint_every,
        metric=metric,
        autolog=autolog,
        directory=directory,
        interpreter=interpreter,
        args=args,
        start_with=start_with,
    )
    job = send(prepared, client)
    return job.wait() if wait else job


def send(prepared: Prepared, client: Client | None = None) -> Job:
    """Send a prepared submission and return its job."""
    pool_client = client or Client()
    return Job(prepared.send(pool_client), pool_client)


def jobs(*, state: str | None = None, owner: str | None = None, limit: int | None = None) -> list[Job]:
    """Return the pool's jobs, newest first. `state`: one or more states, separated by commas."""
    client = Client()
    return [Job(view, client) for view in client.jobs(state=state, owner=owner, limit=limit)]


def job(name: str) -> Job:
    """Return a job by its handle ("resnet-48"), or the newest job of a name ("resnet"). Raises NotFound."""
    client = Client()
    return Job(client.job(name), client)


def pool() -> PoolView:
    """Return the pool: its nodes, devices, the jobs that hold them, and the queue."""
    return Client().pool()


class NotRestored(DlaasError):
    """Error of a result whose state does not fit the object into which it should be loaded."""

    code = "not_restored"


def result(handle: str, *names: str, into: Mapping[str, object] | None = None) -> Any:
    """Load results of a completed job: one object for one name, else a tuple. Raises NotFound.

    Names whose values share objects are loaded as one graph: `model, opt = dlaas.result("resnet-48", "model", "opt")`
    gives an optimiser of the weights of this very model. `into={"model": model}` loads the state into the existing
    model, so that references to it stay valid. Raises NotRestored if the state does not fit.
    """
    values, origins = _load(Client(), handle, names)
    if into is not None or "DLAAS_JOB" in os.environ:
        attributes = _lazy_module("jupyter_dlaas.transfer.shared_objects").ClassAttributes(values)
        restored = _lazy_module("jupyter_dlaas.transfer.result_restore").restore(
            values, {**(into or {}), **attributes.values()}, with_weights=True, changed={*(into or ())}, origins=origins
        )
        for name in into or ():
            if name not in restored.kept:
                why = restored.reason or "its type has no loadable state"
                raise NotRestored(
                    f"{name} of {handle} cannot be loaded into the existing `{name}`: {why}. Send the object to the "
                    f"job by value (--push {name}), or create it in the training cell."
                )
        values = restored.values
        attributes.bind(values)
    return values[names[0]] if len(names) == 1 else tuple(values[name] for name in names)


def _load(client: Client, handle: str, names: Iterable[str]) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Return the values, and the former paths of their parts as `results.origins_in` does."""
    results = _lazy_module("jupyter_dlaas.transfer.results")
    values: dict[str, Any] = {}
    origins: dict[str, dict[str, str]] = {}
    for name in names:
        if name not in values:
            versions = functools.partial(results.versions_of, client, handle)
            source = lambda: client.source(handle)[0]  # noqa: E731 - read only if a class is missing
            data = client.result(handle, name)
            values |= results.load_graph(name, data, source, _warn_of_versions, versions)
            origins |= results.origins_in(data)
    return values, origins


def _warn_of_versions(names: frozenset[str]) -> None:
    """Warn of classes of modules that differ from the job's. For classes of a notebook the job's version is used."""
    if others := sorted(name for name in names if "." in name):
        warnings.warn(
            f"{', '.join(others)}: the class differs from the job's version; the result uses the class of this process",
            stacklevel=6,
        )


def _lazy_module(name: str) -> Any:
    """Import a module by name on first use; such modules import this one, so an import statement would be circular."""
    return importlib.import_module(name)


class Job:
    """A job of the pool. Properties are read from the engine on each access; only the last view is kept."""

    def __init__(self, view: JobView | str, client: Client | None = None) -> None:
        self._client = client or Client()
        self._view = self._client.job(view) if isinstance(view, str) else view

    @property
    def client(self) -> Client:
        """Client through which this job is accessed."""
        return self._client

    @property
    def id(self) -> str:
        """Handle of the job, unique in the pool: "resnet-48"."""
        return self._view.id

    @property
    def name(self) -> str:
        """Name of the job, which later jobs may share: "resnet"."""
        return self._view.name

    @property
    def view(self) -> JobView:
        """Current view of the job."""
        self._view = self._client.job(self.id)
        return self._view

    @property
    def last_view(self) -> JobView:
        """View of the job at the last request; sends nothing."""
        return self._view

    @property
    def status(self) -> str:
        """Current state: QUEUED, DEPLOYING, PROCESSING, COMPLETED, …"""
        state = self.view.state
        self._report_end()
        return str(state)

    @property
    def directory(self) -> Path:
        """Directory with the job's files."""
        return Path(self._view.directory)

    def wait(self, timeout: float | None = None, *, raise_on_failure: bool = True) -> Job:
        """Wait until the job has ended or is halted.

        Raises TimeoutError after `timeout` seconds, JobFailed if the job failed or was cancelled, and JobHalted if it
        is halted: it has not ended, but waits for `resume`. With `raise_on_failure=False`, it returns instead of
        raising the latter two. An interrupt does not affect the job. In a notebook, the results of `-o` are assigned
        before it returns.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        if self._view.state is State.HALTED:
            self._view = self._client.job(self.id)  # it may have been resumed since
        cursor = Cursor(row=self._view.row)
        while not (self._view.state.is_final or self._view.state is State.HALTED):
            left_s = 20.0 if deadline_s is None else deadline_s - time.monotonic()
            if left_s <= 0:
                goes_on = "stays in the queue" if self._view.state is State.QUEUED else "keeps running"
                raise TimeoutError(f"{self.id} is still {self._view.state} after {timeout:g} s; it {goes_on}")
            reader = Follower(self._client, self.id, cursor, ("view",), wait_s=min(20.0, left_s), view=self._view)
            for _ in reader.once():
                pass
            cursor, self._view = reader.cursor, reader.view or self._view
        self._report_end()
        if not raise_on_failure or self._view.state is State.COMPLETED:
            return self
        if self._view.state is State.HALTED:
            raise JobHalted(self._view, "job.resume()")
        raise JobFailed(self._view)

    def _report_end(self) -> None:
        if self._view.state.is_final:
            for listener in end_listeners:
                listener(self)

    def scale(self, learners: int) -> Job:
        """Set the number of learners; the job grows or shrinks while it runs."""
        self._view = self._client.change(self.id, learners=option_parsing.count(learners, option="learners"))
        return self

    def set_priority(self, priority: int | str) -> Job:
        """Set the priority: low, normal, high or a number."""
        self._view = self._client.change(self.id, priority=option_parsing.priority(priority))
        return self

    def halt(self) -> Job:
        """Write a checkpoint and release the devices; `resume` continues from there.

        A plain loop writes no checkpoint, so `resume` starts it over; its `view.actions` say so in `confirm`.
        """
        return self._act("halt")

    def resume(self) -> Job:
        """Resume a halted job: put it back into the queue."""
        return self._act("resume")

    def cancel(self) -> Job:
        """Cancel the job permanently."""
        return self._act("cancel")

    def checkpoint(self) -> Job:
        """Write a checkpoint at the next step; training continues. Raises NotAllowed if the job is not training."""
        return self._act("checkpoint")

    def _act(self, verb: str) -> Job:
        self._view = self._client.act(self.id, verb)
        return self

    def retry(self) -> Job:
        """Submit the same program with the same options as a new job, and return that job."""
        return Job(self._client.act(self.id, "retry"), self._client)

    def follow(self, cursor: Cursor | None = None) -> Follower:
        """Follow the job's messages (views, log, metrics), across restarts of engine and server, until it has ended.

        The views of a queued job give the reason, and those of a halted one its state; set `ends_at_halt` to end there.
        """
        return Follower(self._client, self.id, cursor or Cursor())

    @overload
    def logs(self, follow: Literal[False] = False, *, member: int | None = None) -> str: ...

    @overload
    def logs(self, follow: Literal[True], *, member: int | None = None) -> Iterator[str]: ...

    def logs(self, follow: bool = False, *, member: int | None = None) -> str | Iterator[str]:
        """Return the log so far as text; with `follow=True`, yield its lines until the job has ended or is halted.

        Lines of several learners are marked with the learner's number ("L4"); `member` selects one learner.
        """
        return self._lines(member) if follow else "".join(line + "\n" for line in self._written(member))

    def _lines(self, member: int | None) -> Iterator[str]:
        lines = LogLines(is_marked=self._view.size.max > 1 and member is None, member=member)
        reader = self.follow()
        reader.ends_at_halt = True
        for message in reader.messages():
            yield from lines.feed(message)
        yield from lines.rest()
        self._view = reader.view or self._view
        self._report_end()

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
        """Return all metrics, one row per step with `step`, `epoch`, `time` and the values, as for a DataFrame.

        Steps that were trained again after a restart appear once.
        """
        rows: list[dict[str, Any]] = []
        offset, size = 0, 1
        while offset < size:
            page = self._client.metrics(self.id, offset)
            for record in page["records"]:
                if "rewind" in record:
                    rows = [row for row in rows if row["step"] is None or row["step"] <= record["rewind"]]
                    continue
                head = {"step": record.get("step"), "epoch": record.get("epoch"), "time": record.get("t")}
                rows.append(head | {name: decode_float(value) for name, value in record.get("values", {}).items()})
            if page["to"] <= offset:
                break
            offset, size = page["to"], page["size"]
        return rows

    def result(self, name: str | None = None) -> Any:
        """Return one result, or all results as a dict if no name is given. Raises NotAllowed before the job completes.

        Results that share objects are loaded as one graph.
        """
        view = self._view if self._view.state.is_final else self.view
        if view.state is not State.COMPLETED and (name is None or name not in view.results):
            raise NotAllowed(f"{self.id} is {view.state}; results are available after it completes: job.wait()")
        if name is not None:
            return _load(self._client, self.id, (name,))[0][name]
        values, _ = _load(self._client, self.id, view.results)
        return {name: values[name] for name in view.results if name in values}

    def why(self) -> str:
        """Explain the job's current state."""
        return "\n".join(self._client.why(self.id))

    def events(self) -> str:
        """Return the job's events, one per line."""
        events = self._client.events(self.id)
        return "\n".join(f"{time.strftime('%H:%M:%S', time.localtime(e['at_s']))}  {e['text']}" for e in events)

    def source(self) -> str:
        """Return the job's program, train.py."""
        return self._client.source(self.id)[0]

    def artifacts(self) -> dict[str, int]:
        """Return the files that the job wrote: path to size in bytes."""
        return {str(file["path"]): int(file["bytes"]) for file in self._client.artifacts(self.id)}

    def artifact(self, path: str) -> bytes:
        """Return the bytes of one artifact: "notes.txt" in the output directory. Raises NotFound."""
        return self._client.artifact(self.id, path)

    def report(self) -> str:
        """Return a report for support: spec, versions, failure and last log lines, with secrets masked."""
        return self._client.report(self.id)

    def delete(self) -> None:
        """Delete the record and the directory of an ended job."""
        self._client.delete(self.id)

    def widget(self) -> Any:
        """Return an ipywidgets view of the job, for front ends without the JupyterLab extension."""
        return _lazy_module("jupyter_dlaas.display.widget").widget(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return _lazy_module("jupyter_dlaas.display.html").mimebundle(self)

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
    """Decorate a function of a module or script so that a call submits it as a job and returns the Job.

        @dlaas.train(gpus="1:4", outputs="returned")
        def fit(epochs, lr=0.1): ...

        if __name__ == "__main__":
            job = fit(30, lr=0.05)

    Options are those of `submit`. The job imports the function's module and calls the function; the result is
    named `returned`. Arguments must be plain values (numbers, strings, lists, dicts). Inside a job the function is
    called directly; `fit.__wrapped__` does so anywhere. In a notebook, use `%%train`.
    """
    if function is None:
        return lambda decorated: _decorated(decorated, options)
    return _decorated(function, options)


def _decorated(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    from jupyter_dlaas.api import decorator

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if decorator.is_in_job():
            return function(*args, **kwargs)
        text, named = decorator.program_of(function, args, kwargs)
        data = package_data(text, named)
        packed = sources.pack({**data.files, **named})
        given = dict(options)
        given.setdefault("name", option_parsing.job_name(function.__name__))
        given.setdefault("framework", decorator.framework_of(function))
        given["files"] = (*given.get("files", ()), *packed.files, *data.inputs())
        given["notes"] = (*given.get("notes", ()), *data.notes)
        given["uploads"] = {**(given.get("uploads") or {}), **(packed.uploads or {})}
        wait, client = given.pop("wait", False), given.pop("client", None)
        job = send(prepare(text, **given), client)
        return job.wait() if wait else job

    return call
