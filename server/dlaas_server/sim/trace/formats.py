"""Reader of CSV files: the header identifies the format; an invalid line is refused with line and column.

Every format is a table of columns and one function that makes a record of a line. What is checked here is trusted from
here on.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlaas_server.sim.trace.trace import (
    Muri,
    NodeSpec,
    Pod,
    Pollux,
    PolluxPlacement,
    PolluxScaling,
    PolluxValidation,
    Shockwave,
    Task,
    Tiresias,
    Trace,
    TraceError,
    TraceJob,
)

__all__ = ["FORMATS", "Format", "read", "read_gpu_seconds", "read_nodes", "read_trace"]

Value = str | int | float | None
Reader = Callable[[str], Value]
Record = TraceJob | NodeSpec | PolluxPlacement | PolluxScaling | PolluxValidation | int


class Row:
    """The values of one line, by column."""

    __slots__ = ("values",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = values

    def number(self, column: str) -> float:
        """Return the number in a numeric column; whole numbers stay int."""
        value = self.values[column]
        assert isinstance(value, int | float)
        return value

    def maybe(self, column: str) -> float | None:
        """Return the number; None if the cell may be empty and is."""
        return None if self.values[column] is None else self.number(column)

    def whole(self, column: str) -> int:
        """Return a whole number."""
        value = self.values[column]
        assert isinstance(value, int)
        return value

    def text(self, column: str) -> str:
        """Return the text of the cell."""
        return str(self.values[column])


@dataclass(frozen=True, slots=True)
class Format:
    """File format: its columns with their readers, and the record of a line."""

    name: str
    columns: Mapping[str, Reader]
    build: Callable[..., Record]
    """Function of a row, or of the values of its columns, in the order of `columns`."""
    takes_values: bool = False


class _Inconsistent(Exception):
    """Error of a contradictory line: column and fault."""

    def __init__(self, column: str, what: str) -> None:
        super().__init__(what)
        self.column = column


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not finite")
    whole = int(value)
    return whole if value == whole else value


def _whole(least: int) -> Reader:
    def read_it(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if value < least:
            raise ValueError(f"{text} is less than {least}")
        return value

    return read_it


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text


def _maybe_text(text: str) -> str:
    return text


def _maybe_seconds(text: str) -> float | None:
    return None if text == "" else _least_zero(text)


def _least_zero(text: str) -> float:
    value = _number(text)
    if value < 0:
        raise ValueError(f"{text} is negative")
    return value


def _positive(text: str) -> float:
    value = _number(text)
    if value <= 0:
        raise ValueError(f"{text} is not more than 0")
    return value


_seconds: Final = _least_zero
_one: Final = _whole(1)
_zero: Final = _whole(0)
_LEAST: Final[Mapping[Reader, int]] = {_seconds: 0, _positive: 1, _one: 1, _zero: 0}
"""Smallest whole number that a reader accepts."""
EXACT: Final = 2**53
"""Limit below which a float represents every whole number."""


def _bit(text: str) -> int:
    if text not in ("0", "1"):
        raise ValueError(f"{text!r} is neither 0 nor 1")
    return int(text)


_COMMON: Final[dict[str, Reader]] = {"job_id": _text, "submit_s": _seconds, "gpus": _one, "duration_s": _positive}


def _common(row: Row, work: Tiresias | Muri | Shockwave | None = None, queue: str = "default") -> TraceJob:
    gpus, duration_s = row.whole("gpus"), row.number("duration_s")
    submit_s = row.number("submit_s")
    return TraceJob(
        id=row.text("job_id"), submit_s=submit_s, duration_s=duration_s, gpus_per_learner=gpus, queue=queue, work=work
    )


def _tiresias(row: Row) -> TraceJob:
    return _common(row, Tiresias(model=row.text("model"), iterations=row.whole("iterations")))


def _muri(row: Row) -> TraceJob:
    resources_ms = (row.number("res0_ms"), row.number("res1_ms"), row.number("res2_ms"))
    work = Muri(
        model=row.text("model"),
        batch_size=row.whole("batch_size"),
        iterations=row.whole("iterations"),
        iter_time_ms=row.number("iter_time_ms"),
        resources_ms=resources_ms,
        priority=row.whole("priority"),
    )
    return _common(row, work)


def _shockwave(row: Row) -> TraceJob:
    work = Shockwave(
        model=row.text("model"),
        total_steps=row.whole("total_steps"),
        adaptation_mode=row.text("adaptation_mode"),
        priority_weight=row.number("priority_weight"),
        slo=row.number("slo"),
    )
    return _common(row, work)


def _pollux(row: Row) -> TraceJob:
    return TraceJob(
        id=row.text("job_id"),
        submit_s=row.number("submit_s"),
        duration_s=None,
        gpus_per_learner=row.whole("gpus_tuned"),
        work=Pollux(
            workload=row.whole("workload"),
            application=row.text("application"),
            batch_size_tuned=row.whole("batch_size_tuned"),
        ),
    )


def _tetris(row: Row) -> TraceJob:
    return TraceJob(
        id=f"{row.text('job_id')}/{row.text('task_id')}",
        submit_s=row.number("submit_s"),
        duration_s=row.number("duration_s"),
        gpus_per_learner=0,
        cpus_per_learner=row.number("cpu"),
        mem_gb_per_learner=row.number("mem_gb"),
        work=Task(job=row.text("job_id"), disk_mbps=row.number("disk_mbps"), net_mbps=row.number("net_mbps")),
    )


def _pod(row: Row) -> TraceJob:
    """Return a pod's submit time and duration; pods of a list without times arrive at 0 and never end."""
    gpus, milli = row.whole("num_gpu"), row.whole("gpu_milli")
    if gpus > 0 and milli == 0:
        raise _Inconsistent("gpu_milli", f"is 0, but num_gpu is {gpus}")
    submit_s, duration_s = 0.0, None
    work = Pod(gpu_milli=milli)
    if "creation_time" in row.values:
        submit_s, deleted_s = row.number("creation_time"), row.number("deletion_time")
        begun_s = row.maybe("scheduled_time")
        if deleted_s < submit_s:
            raise _Inconsistent("deletion_time", f"{deleted_s:g} is before the creation at {submit_s:g}")
        duration_s = deleted_s - (submit_s if begun_s is None else begun_s)
        if duration_s < 0:
            raise _Inconsistent("scheduled_time", f"{begun_s:g} is after the deletion at {deleted_s:g}")
        duration_s = max(duration_s, 1)  # whole seconds: gone within its first
        work = Pod(gpu_milli=milli, gpu_spec=row.text("gpu_spec"), qos=row.text("qos"), phase=row.text("pod_phase"))
    return TraceJob(
        id=row.text("name"),
        submit_s=submit_s,
        duration_s=duration_s,
        gpus_per_learner=gpus,
        cpus_per_learner=row.number("cpu_milli") / 1000,
        mem_gb_per_learner=row.number("memory_mib") / 1024,
        work=work,
    )


def _node(row: Row) -> NodeSpec:
    return NodeSpec(
        name=row.text("sn"),
        gpus=row.whole("gpu"),
        cpus=row.number("cpu_milli") / 1000,
        mem_gb=row.number("memory_mib") / 1024,
        kind=row.text("model"),
        area=str(row.values.get("area", "")),
        rack=str(row.values.get("rack", "")),
    )


def _philly(name: str, submit_s: float, gpus: int, duration_s: float) -> TraceJob:
    return TraceJob(id=name, submit_s=submit_s, duration_s=duration_s, gpus_per_learner=gpus)


def _gang(
    name: str, submit_s: float, learners: int, gpus: int, duration_s: float, cpus: float = 0.0, mem_gb: float = 0.0
) -> TraceJob:
    return TraceJob(
        id=name, submit_s=submit_s, duration_s=duration_s, learners=learners, gpus_per_learner=gpus,
        cpus_per_learner=cpus, mem_gb_per_learner=mem_gb,
    )  # fmt: skip


def _placement(placement: str, local_batch: int, step_time_s: float, sync_time_s: float) -> PolluxPlacement:
    return PolluxPlacement(
        placement=placement, local_batch=local_batch, step_time_s=step_time_s, sync_time_s=sync_time_s
    )


def _scaling(nodes: int, replicas: int, local_batch: int, step_time_s: float, sync_time_s: float) -> PolluxScaling:
    return PolluxScaling(
        nodes=nodes, replicas=replicas, local_batch=local_batch, step_time_s=step_time_s, sync_time_s=sync_time_s
    )


def _validation(progress: float, iteration: int, metric: float, grad_sqr: float, grad_var: float) -> PolluxValidation:
    return PolluxValidation(progress=progress, iteration=iteration, metric=metric, grad_sqr=grad_sqr, grad_var=grad_var)


def _spot(row: Row) -> TraceJob:
    job = _common(row, queue=row.text("queue"))
    job.spot = bool(row.whole("spot"))
    return job


_GANG: Final[dict[str, Reader]] = {
    "job_id": _text, "submit_s": _seconds, "learners": _one, "gpus_per_learner": _zero, "duration_s": _positive,
}  # fmt: skip
_VALIDATION: Final[dict[str, Reader]] = {
    "progress": _seconds, "iteration": _zero, "metric": _number, "grad_sqr": _number, "grad_var": _number,
}  # fmt: skip
_FFDL: Final[dict[str, Reader]] = {**_GANG, "cpus_per_learner": _seconds, "mem_gb_per_learner": _seconds}
_NODE: Final[dict[str, Reader]] = {"sn": _text, "cpu_milli": _zero, "memory_mib": _zero, "gpu": _zero, "model": _text}
_POD: Final[dict[str, Reader]] = {
    "name": _text, "cpu_milli": _zero, "memory_mib": _zero, "num_gpu": _zero, "gpu_milli": _zero,
}  # fmt: skip
_STEP: Final[dict[str, Reader]] = {"local_bsz": _one, "step_time": _seconds, "sync_time": _seconds}

FORMATS: Final = (
    Format("philly", _COMMON, _philly, takes_values=True),
    Format("tiresias", {**_COMMON, "model": _text, "iterations": _zero}, _tiresias),
    Format("queues", {**_COMMON, "queue": _text}, lambda row: _common(row, queue=row.text("queue"))),
    Format("spot", {**_COMMON, "queue": _text, "spot": _bit}, _spot),
    Format(
        "muri",
        {
            **_COMMON, "model": _text, "batch_size": _one, "iterations": _zero, "iter_time_ms": _positive,
            "res0_ms": _seconds, "res1_ms": _seconds, "res2_ms": _seconds, "priority": _whole(-1_000_000),
        },
        _muri,
    ),
    Format(
        "shockwave",
        {
            **_COMMON, "model": _text, "total_steps": _one, "adaptation_mode": _text, "priority_weight": _positive,
            "slo": _number,
        },
        _shockwave,
    ),
    Format(
        "pollux",
        {
            "workload": _one, "job_id": _text, "submit_s": _seconds, "application": _text, "gpus_tuned": _one,
            "batch_size_tuned": _one,
        },
        _pollux,
    ),
    Format("gang", _GANG, _gang, takes_values=True),
    Format("ffdl", _FFDL, _gang, takes_values=True),
    Format(
        "tetris",
        {
            "job_id": _text, "task_id": _text, "submit_s": _seconds, "cpu": _seconds, "mem_gb": _seconds,
            "disk_mbps": _seconds, "net_mbps": _seconds, "duration_s": _positive,
        },
        _tetris,
    ),
    Format("openb-pods", _POD, _pod),
    Format(
        "openb-pods-in-time",
        {
            **_POD, "gpu_spec": _maybe_text, "qos": _maybe_text, "pod_phase": _maybe_text, "creation_time": _seconds,
            "deletion_time": _seconds, "scheduled_time": _maybe_seconds,
        },
        _pod,
    ),
    Format("nodes", _NODE, _node),
    Format("nodes-in-racks", {**_NODE, "area": _maybe_text, "rack": _maybe_text}, _node),
    Format("gpu-seconds", {"gpu_seconds": _whole(1)}, lambda row: row.whole("gpu_seconds")),
    Format("pollux-placements", {"placement": _text, **_STEP}, _placement, takes_values=True),
    Format("pollux-scalability", {"num_nodes": _one, "num_replicas": _one, **_STEP}, _scaling, takes_values=True),
    Format("pollux-validation", _VALIDATION, _validation, takes_values=True),
)  # fmt: skip


def read(path: Path) -> tuple[Format, list[tuple[int, Record]]]:
    """Return the format of a CSV file and its records with line numbers. Raises TraceError, OSError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(path, 1, None, f"is not UTF-8 text ({error.reason})") from None
    lines = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        header = next(lines, None)
        if not header or not any(header):
            raise TraceError(path, 1, None, "the file is empty; a header is needed")
        kind, names = _recognise(path, [name.strip() for name in header])
        return kind, _records(path, kind, names, lines)
    except csv.Error as error:
        raise TraceError(path, lines.line_num, None, f"is not valid CSV: {error}") from None


def _recognise(path: Path, header: list[str]) -> tuple[Format, list[str]]:
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise TraceError(path, 1, twice, "stands twice in the header")
    names = set(header)
    for candidate in FORMATS:
        if names == candidate.columns.keys():
            return candidate, header
    nearest = max(FORMATS, key=lambda f: len(names & f.columns.keys()) / len(names | f.columns.keys()))
    missing = [name for name in nearest.columns if name not in names]
    if len(names & nearest.columns.keys()) * 2 < len(nearest.columns):
        known = "; ".join(f"{f.name}: {','.join(f.columns)}" for f in FORMATS[:4])
        raise TraceError(path, 1, None, f"unknown header {','.join(header)!r}. Known are {known}; …")
    if missing:
        raise TraceError(path, 1, missing[0], f"is missing (the rest looks like a {nearest.name} trace)")
    extra = next(name for name in header if name not in nearest.columns)
    raise TraceError(path, 1, extra, f"is unknown (the rest looks like a {nearest.name} trace)")


def _records(path: Path, kind: Format, header: list[str], lines: Iterator[list[str]]) -> list[tuple[int, Record]]:
    filled = [row for row in enumerate(lines, start=2) if row[1]]  # no cell of these formats holds a line break
    if not filled:
        raise TraceError(path, 1, None, "nothing stands below the header")
    found = _at_once(kind, header, [cells for _, cells in filled]) if kind.takes_values else None
    if found is not None:
        return list(zip((line for line, _ in filled), found, strict=True))
    return [(line, _record(path, kind, header, line, cells)) for line, cells in filled]


def _at_once(kind: Format, header: list[str], rows: list[list[str]]) -> list[Record] | None:
    """Return the records of all rows, read column by column in a third of the time; None if a cell is invalid."""
    if any(len(cells) != len(header) for cells in rows):
        return None
    cells = dict(zip(header, zip(*rows, strict=True), strict=True))
    try:
        return list(map(kind.build, *(_column(reader, cells[name]) for name, reader in kind.columns.items())))
    except ValueError:
        return None


def _column(reader: Reader, cells: Sequence[str]) -> Sequence[Value]:
    """Read all cells of a column. Raises ValueError if one is invalid."""
    least = _LEAST.get(reader)
    if least is not None:
        try:
            whole = list(map(int, cells))
        except ValueError:
            pass  # not all are whole numbers: each is looked at
        else:
            if least <= min(whole) and max(whole) < EXACT:
                return whole
    return list(map(reader, cells))


def _record(path: Path, kind: Format, header: list[str], line: int, cells: list[str]) -> Record:
    if len(cells) != len(header):
        raise TraceError(path, line, None, f"has {len(cells)} cells, the header {len(header)}")
    values: dict[str, Value] = {}
    try:
        for name, cell in zip(header, cells, strict=True):
            values[name] = kind.columns[name](cell)
    except ValueError as error:
        raise TraceError(path, line, header[len(values)], str(error)) from None
    try:
        return kind.build(*(values[name] for name in kind.columns)) if kind.takes_values else kind.build(Row(values))
    except _Inconsistent as error:
        raise TraceError(path, line, error.column, str(error)) from None


def read_trace(path: Path, workload: int | None = None) -> Trace:
    """Return the jobs of a trace, by time of submission. `workload` selects one of a file with several (Pollux).

    Raises TraceError if a line is invalid, a job occurs twice, or the file is not a trace of jobs.
    """
    kind, records = read(path)
    jobs: list[TraceJob] = []
    seen: dict[tuple[int, str], int] = {}
    for line, record in records:
        if not isinstance(record, TraceJob):
            raise TraceError(path, 1, None, f"is a {kind.name} file; a trace of jobs is needed")
        group = record.work.workload if isinstance(record.work, Pollux) else 0
        first = seen.setdefault((group, record.id), line)
        if first != line:
            column = "name" if "name" in kind.columns else "job_id"
            raise TraceError(path, line, column, f"job {record.id} stands in line {first} already")
        if workload is None or group == workload:
            jobs.append(record)
    groups = sorted({group for group, _ in seen})
    if workload is None and len(groups) > 1:
        raise TraceError(
            path, 1, "workload", f"holds workloads {groups[0]} to {groups[-1]}: choose one with --workload"
        )
    if not jobs:
        raise TraceError(path, 1, "workload", f"there is no workload {workload}")
    return Trace(name=path.stem, format=kind.name, jobs=tuple(sorted(jobs, key=lambda job: job.submit_s)))


def read_nodes(path: Path) -> tuple[NodeSpec, ...]:
    """Return the machines of a node list, in file order."""
    kind, records = read(path)
    nodes: dict[str, NodeSpec] = {}
    for line, record in records:
        if not isinstance(record, NodeSpec):
            raise TraceError(path, 1, None, f"is a {kind.name} file; a list of nodes is needed")
        if record.name in nodes:
            raise TraceError(path, line, "sn", f"node {record.name} stands twice")
        nodes[record.name] = record
    return tuple(nodes.values())


def read_gpu_seconds(path: Path) -> tuple[int, ...]:
    """Return a distribution of job sizes in GPU-seconds, smallest first."""
    kind, records = read(path)
    return tuple(sorted(_only_ints(path, kind, (record for _, record in records))))


def _only_ints(path: Path, kind: Format, records: Iterable[Record]) -> Iterator[int]:
    for record in records:
        if not isinstance(record, int):
            raise TraceError(path, 1, None, f"is a {kind.name} file; GPU-seconds are needed")
        yield record
