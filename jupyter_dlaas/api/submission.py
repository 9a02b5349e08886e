"""Submissions: options, program and files of a job, checked and put together before anything is sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from jupyter_dlaas.api import option_parsing, sources
from jupyter_dlaas.api.package_data import package_data
from jupyter_dlaas.client.http import Client, new_key
from jupyter_dlaas.runtime.system.hash_seed import DEFAULT as DEFAULT_HASH_SEED
from jupyter_dlaas.runtime.system.hash_seed import VARIABLE as HASH_SEED
from jupyter_dlaas.runtime.system.hash_seed import hash_seed_of, own_hash_seed
from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.protocol import File, JobSpec, JobView, Note, Origin, Placement, Refused, Submit
from jupyter_dlaas.wire.secret_masking import SECRETS, named_secrets

__all__ = ["Bounds", "Prepared", "prepare"]

Bounds = int | str | tuple[int, int]
MEMORY_BYTES_MIN: Final = 2**20
"""Smallest memory request of a learner: a smaller one lacks a unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A submission that is ready to send, and the files (by SHA-256) to upload before it."""

    submit: Submit
    uploads: Mapping[str, Path]

    def send(self, client: Client) -> JobView:
        """Upload the files, then submit. Calling it again is safe: the same key gives the same job.

        Before an upload, a preflight checks that the pool can ever run the job. Raises Refused.
        """
        if self.uploads:
            sizes = replace(self.submit, files=())
            problems = cast("list[dict[str, str]]", client.preflight(sizes)["problems"])
            if problems:
                raise Refused(problems[0]["text"])
        for path in self.uploads.values():
            client.put_blob(path)
        try:
            return client.submit(self.submit)
        except Invalid as error:  # its caller named an option, not a field of the request
            raise Invalid(str(error).removeprefix("spec.")) from None


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
    environment: Mapping[str, str] | None = None,
    files: Sequence[File] = (),
    uploads: Mapping[str, Path] | None = None,
    origin: Origin | None = None,
    notes: Sequence[Note] = (),
    cells: Mapping[str, str] | None = None,
    python: str | None = None,
    key: str | None = None,
) -> Prepared:
    """Prepare the submission of a script (path) or of source text, without sending anything.

    `gpus="1:4"`: one to four GPUs, one learner each; `learners` and `gpus_per_learner` count learners instead.
    `memory` ("8G") and `cpus` are per learner; `max_time`, `hang_after` and `checkpoint_every` are seconds or "2h".
    `hang_after`: time without progress after which a learner is ended. `outputs`: variables of the program to return
    as results. The job uses this Python, this directory and this environment (without Jupyter's own variables), unless
    `interpreter`, `directory` or `environment` are given; `env` is added.
    `secret`: names of environment variables to send, whose values are masked in logs, reports and everything shown.
    `elastic`: what may resize the running job: "off" (nothing), "manual" (your requests), "auto" (measured speed;
    for conditions such as "auto:efficiency=0.2" see `option_parsing.elastic`). `schedule="epoch 30: 4 gpus"`: sizes by
    epoch. `spot=True`: use only idle devices, at a lower weight, and return them when ordinary jobs need them.
    `args` are the script's own arguments. `autolog="off"`: metrics from `run.log` and `metric` only. Modules beside
    a script are sent with it; `include` names other files, relative to `directory`.

    `files`, `uploads`, `origin`, `notes`, `cells` and `python` (the minor version that the files require) are for
    callers that build programs from cells. Raises Invalid, which names the option.
    """
    base_environment = os.environ if environment is None else environment
    secrets = option_parsing.secrets(secret, base_environment)
    masked = {SECRETS: ",".join(sorted({*named_secrets(base_environment), *secrets}))}
    python_path = option_parsing.interpreter(interpreter) if interpreter else sys.executable
    script = sources.read_script(source, python_path)
    folder = option_parsing.directory(directory)
    sent = sources.included(include, folder)
    if script.path is not None:
        modules = sources.own_modules(script.text, script.path.parent, script.path)
        data = package_data(script.text, modules)
        sent = {**data.files, **modules, **sent}
        files, notes = (*files, *data.inputs()), (*notes, *data.notes)
    packed = sources.pack(sent)
    size = option_parsing.sizes(gpus, learners, gpus_per_learner)
    sizing = option_parsing.elastic(elastic)
    spec = JobSpec(
        name=name or (option_parsing.job_name(script.path.name) if script.path is not None else "train"),
        learners_min=size.learners_min,
        learners_max=size.learners_max,
        gpus_per_learner=size.gpus_per_learner,
        cpus_per_learner=option_parsing.cpus(cpus),
        memory_bytes_per_learner=0 if memory is None else option_parsing.memory_bytes(memory, minimum=MEMORY_BYTES_MIN),
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
        framework=option_parsing.framework(framework) if framework else option_parsing.framework_of(script.text),
        epochs=None if epochs is None else option_parsing.count(epochs, option="epochs"),
        max_time_s=None if max_time is None else option_parsing.duration_s(max_time, option="max time", minimum_s=1.0),
        hang_after_s=None
        if hang_after is None
        else option_parsing.duration_s(hang_after, option="hang after", minimum_s=1.0),
        checkpoint_every_s=option_parsing.duration_s(checkpoint_every, option="checkpoint every"),
        retries=option_parsing.whole(retries, option="retries"),
        outputs=option_parsing.names(outputs),
        metric_patterns=option_parsing.metric_patterns(metric),
        autolog=option_parsing.on_off(autolog, option="autolog"),
        command=_arguments(args),
        interpreter=python_path,
        python=python,
        variables=tuple(option_parsing.environment(env)),
        directory=str(folder),
        script=None if script.path is None else str(script.path),
        origin=origin or Origin(),
        notes=tuple(notes),
        cells=dict(cells or {}),
    )
    submit = Submit(
        key=key or new_key(),
        spec=spec,
        source=script.text,
        files=(*files, *packed.files),
        environment={
            **option_parsing.without_jupyter(base_environment),
            HASH_SEED: hash_seed_of(environment) if environment is not None else own_hash_seed() or DEFAULT_HASH_SEED,
            **option_parsing.environment(env),
            **secrets,
            **{name: names for name, names in masked.items() if names},
        },
        learners=start_with,
    )
    return Prepared(submit=submit, uploads={**(packed.uploads or {}), **(uploads or {})})


def _arguments(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise Invalid(f'args: expected a list, such as ["--size", "4"], but got {given!r}')
    return tuple(str(arg) for arg in given)


def _placement(text: str) -> Placement:
    try:
        return Placement(text)
    except ValueError:
        raise Invalid(f"placement: {text!r} is not valid; use one of {', '.join(Placement)}") from None
