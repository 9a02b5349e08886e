"""Jobs and pools as text for a terminal: pure functions of the engine's views. Standard library only.

Numbers are formatted by `display.formatting`; colours are used only if `Ink` allows them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jupyter_dlaas.display import formatting
from jupyter_dlaas.wire.learner_view import places_text
from jupyter_dlaas.wire.membership_history import ran_s
from jupyter_dlaas.wire.protocol import DeviceView, DrainView, JobView, NodeView, PoolView, State, is_report

__all__ = [
    "Ink",
    "artifacts_table",
    "drain_text",
    "job_text",
    "jobs_table",
    "metrics_table",
    "pool_text",
    "queue_table",
    "results_text",
    "shares_table",
    "size_text",
    "why_text",
]

_TONES: Final[Mapping[str, str]] = {"active": "34", "good": "32", "warn": "33", "bad": "31"}
_BAR_WIDTH: Final = 20
_NOTE_WIDTH_MIN: Final = 24
_PLACES_OF_ROW_MAX: Final = 2
_PLACES_WIDTH_MIN: Final = 10
_QUEUE_ROWS_MAX: Final = 100
_METRIC_KEYS: Final = frozenset({"step", "epoch", "time"})


@dataclass(frozen=True, slots=True)
class Ink:
    """Capabilities of a terminal: colours, and the width in columns (None: unlimited)."""

    is_coloured: bool = False
    width: int | None = None

    def paint(self, text: str, code: str) -> str:
        """Wrap the text in an ANSI colour code if the terminal has colours."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.is_coloured and code and text else text

    def bold(self, text: str) -> str:
        """Format text that the reader should notice or type."""
        return self.paint(text, "1")

    def dim(self, text: str) -> str:
        """Format a heading."""
        return self.paint(text, "2")


def size_text(view: JobView) -> str:
    """Format the devices held and the bounds: "4", "4 (1-8)", or "4 -> 6 (1-8)" while another size is requested."""
    each = max(1, view.gpus_per_learner)
    held, low, high = view.size.held * each, view.size.min * each, view.size.max * each
    wish = view.size.wish * each
    arrow = f" -> {wish}" if view.size.held and wish != held and not view.state.is_final else ""
    return f"{held}{arrow}" if low == high else f"{held}{arrow} ({low}-{high})"


def _progress(view: JobView) -> str:
    if view.state in (State.QUEUED, State.DEPLOYING, State.DOWNLOADING) and view.place is not None:
        return f"{ordinal(view.place)} of {view.waiting or view.place}"
    if view.state is State.COMPLETED:
        return f"{formatting.bar(1)} 100%"
    progress = view.progress
    if progress is None:
        return "-"
    if progress.fraction is not None:
        done = min(progress.fraction, 0.995)
        return f"{formatting.bar(done, _BAR_WIDTH)} {formatting.percent(done):>4}"
    return f"step {formatting.number(progress.step)}"


def ordinal(place: int) -> str:
    """Format an ordinal number: 1st, 2nd, 3rd, 4th, 11th, 21st."""
    tail = "th" if 10 <= place % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{tail}"


def _when(view: JobView, now_s: float) -> str:
    if view.ended_s is not None:
        return formatting.day_or_clock(view.ended_s, now_s)
    progress = view.progress
    if view.state is State.PROCESSING and progress is not None and progress.left_s_high is not None:
        low = progress.left_s_high if progress.left_s_low is None else progress.left_s_low
        return formatting.span(now_s + low, now_s + progress.left_s_high, now_s)
    return "-"


def _note(view: JobView) -> str:
    progress = view.progress
    if view.state is State.FAILED and view.failure is not None:
        where = "" if view.failure.where is None else f"{view.failure.where.text}: "
        return f"{view.failure.cause}, {where}{view.failure.what}"
    if view.state is State.HALTED:
        step = f"step {formatting.number(progress.step)}; " if progress is not None else ""
        return f"{step}resume: jupyter dlaas resume {view.id}"
    trained_s = ran_s(view.started_s, view.ended_s, view.interruptions)
    if view.state is State.COMPLETED and trained_s is not None:
        took = formatting.duration(trained_s)
        return f"{took}; results: {', '.join(view.results)}" if view.results else took
    if view.state is State.PROCESSING:
        parts = [view.transition] if view.transition else []
        if progress is not None:
            if (place := formatting.place(progress.epoch, progress.epochs, progress.step)) != _progress(view):
                parts.append(place)
            if progress.steps_per_s:
                parts.append(f"{formatting.number(progress.steps_per_s)} steps/s")
        return ", ".join([*parts, *([view.reason] if view.reason else [])])
    return view.reason or plain(view.status_line)


def plain(text: str) -> str:
    """Replace typographic dashes, arrows and spaces by ASCII ones, so that the text can be searched with grep."""
    return text.translate({0x2013: "-", 0x2009: " ", 0x202F: " ", 0xA0: " ", 0x2192: "->"}).replace(" · ", ", ")


def jobs_table(views: Sequence[JobView], now_s: float, ink: Ink) -> str:
    """Format one line per job, newest first, and a line with the number of jobs per state."""
    if not views:
        return "No jobs yet. Submit one: " + ink.bold("jupyter dlaas submit train.py")
    units = {view.unit for view in views}
    unit = f"{units.pop()}s".upper() if len(units) == 1 else "DEVICES"
    rows: list[tuple[str, ...]] = [("JOB", "STATE", unit, "PROGRESS", "ENDS, STARTS", "WHERE", "NOTE")]
    rows += [
        (
            view.id,
            str(view.state),
            size_text(view),
            _progress(view),
            _when(view, now_s),
            plain(places_text(view.learners, _PLACES_OF_ROW_MAX)) or "-",
            plain(_note(view)),
        )
        for view in views
    ]
    rows = _fitting(rows, ink)
    tones = ["", *(_TONES.get(view.tone, "") for view in views)]
    lines: list[str] = []
    for row, tone in zip(_columns(rows, ink), tones, strict=True):
        if not lines:
            lines.append(ink.dim("  ".join(row).rstrip()))
        else:
            lines.append("  ".join((ink.bold(row[0]), ink.paint(row[1], tone), *row[2:])).rstrip())
    return "\n".join([*lines, "", _count(views, ink)])


def _fitting(rows: Sequence[tuple[str, ...]], ink: Ink) -> list[tuple[str, ...]]:
    """Cut the places to the room that the other columns leave; without a useful room, leave them out."""
    if ink.width is None:
        return list(rows)
    taken = sum(max(len(row[n]) for row in rows) + 2 for n in range(len(rows[0]) - 2))
    room = ink.width - taken - _NOTE_WIDTH_MIN - 2
    if room < _PLACES_WIDTH_MIN:
        return [(*row[:-2], row[-1]) for row in rows]
    return [(*row[:-2], _cut(row[-2], room), row[-1]) for row in rows]


def _columns(rows: Sequence[tuple[str, ...]], ink: Ink) -> list[tuple[str, ...]]:
    """Pad the cells to their column's width and cut the last column at the terminal's width."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]) - 1)]
    left = None if ink.width is None else max(_NOTE_WIDTH_MIN, ink.width - sum(widths) - 2 * len(widths))
    return [
        (*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), _cut(row[-1], left)) for row in rows
    ]


def _rows(rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join("  ".join(row).rstrip() for row in _columns(rows, Ink()))


def _cut(text: str, width: int | None) -> str:
    text = " ".join(text.split())
    return text if width is None or len(text) <= width else text[: width - 3] + "..."


def _count(views: Iterable[JobView], ink: Ink) -> str:
    running = queued = halted = ended = 0
    waits = ""
    for view in views:
        if view.state.is_final:
            ended += 1
        elif view.state is State.QUEUED:
            queued += 1
            waits = waits or view.id
        elif view.state is State.HALTED:
            halted += 1
        else:
            running += 1
    parts = [(running, "running"), (queued, "queued"), (halted, "halted"), (ended, "ended")]
    text = ", ".join(f"{count} {word}" for count, word in parts if count) + "."
    return f"{text}  Why is it waiting?  {ink.bold(f'jupyter dlaas why {waits}')}" if waits else text


def why_text(view: JobView, sentences: Sequence[str], ink: Ink) -> str:
    """Format the first sentence with the others indented below it."""
    first, *others = [plain(sentence) for sentence in sentences] or [f"{view.id} is {view.state}."]
    head = ink.bold(view.id) + first.removeprefix(view.id) if first.startswith(view.id) else first
    others += [f"Where: {places}"] if (places := plain(places_text(view.learners))) else []
    return "\n".join([head, *(f"  {line}" for sentence in others for line in sentence.splitlines())])


def queue_table(pool: PoolView, views: Mapping[str, JobView], ink: Ink) -> str:
    """Format the waiting jobs in queue order, at most the first 100."""
    if not pool.queue:
        return f"No jobs are waiting. {plain(pool.gist)}".strip()
    rows = [("#", "WAITING", "OWNER", "NEEDS", "PRIORITY", "WHY")]
    for place, job in enumerate(pool.queue[:_QUEUE_ROWS_MAX], 1):
        view = views.get(job)
        if view is None:  # another user's job
            rows.append((str(place), job, "", "", "", ""))
            continue
        each = max(1, view.gpus_per_learner)
        needs = f"{view.size.min * each} {view.unit}s" if view.size.min * each != 1 else f"1 {view.unit}"
        priority = f"{view.priority}, spot" if view.spot else str(view.priority)
        rows.append((str(place), job, view.owner, needs, priority, plain(view.reason)))
    head, *others = ["  ".join(row).rstrip() for row in _columns(rows, ink)]
    more = len(pool.queue) - _QUEUE_ROWS_MAX
    return "\n".join([ink.dim(head), *others, *([f"{more:,} more jobs are waiting."] if more > 0 else [])])


def pool_text(pool: PoolView, ink: Ink) -> str:
    """Format the pool's nodes, the jobs on their devices and the pool's settings."""
    used = sum(device.job is not None for node in pool.nodes for device in node.devices)
    head = [
        f"{ink.bold(f'pool {pool.name}')}",
        f"{used} of {pool.devices_total} {pool.unit}s in use",
        f"{len(pool.queue)} waiting",
    ]
    lines = ["   ".join(head), ""]
    columns = max((len(node.devices) for node in pool.nodes), default=0)
    shown = min(columns, 8)
    rows = [("NODE", *(f"{pool.unit} {n}" for n in range(shown)), "")]
    for node in pool.nodes:
        for start in range(0, max(1, len(node.devices)), max(1, shown)):
            cells = [_device(device, node.cordoned) for device in node.devices[start : start + shown]]
            rows.append(
                (node.name if start == 0 else "", *cells, *[""] * (shown - len(cells)), _node_note(node, start))
            )
    table = ["   ".join(row).rstrip() for row in _columns(rows, Ink(width=None))]
    lines += [ink.dim(table[0]), *table[1:]]
    notes = [plain(pool.gist)] if pool.gist and plain(pool.gist) != head[1] else []
    notes += [f"Jobs run on {plain(pool.runs_on)}."] if pool.runs_on else []
    notes += [f"Isolation: {plain(pool.isolation)}"] if pool.isolation else []
    notes += [
        f"Order: {pool.order}, {'with' if pool.preemption else 'without'} preemption. Placement: {pool.placement}."
    ]
    notes += [f"Spot jobs: a device counts as {pool.spot_price:g} in its queue; notice {pool.spot_notice_s:g} s."]
    notes += [plain(notice) for notice in pool.notices]
    notes += [pool.track_record] if pool.track_record else []
    return "\n".join([*lines, "", *notes])


def shares_table(pool: PoolView, ink: Ink) -> str:
    """Format the queues: guarantee, weight, devices held and number of waiting jobs."""
    rows = [("QUEUE", "GUARANTEED", "WEIGHT", "HOLDS", "WAITING")]
    rows += [
        (queue.name, str(queue.guaranteed), f"{queue.weight:g}", str(queue.held), str(queue.waiting))
        for queue in pool.queues
    ]
    head, *others = ["  ".join(row).rstrip() for row in _columns(rows, Ink(width=None))]
    notes = []
    if pool.order != "fair":
        change = ink.bold("jupyter dlaas pool --order fair")
        notes = ["", f"Shares apply only to the order 'fair'; this pool uses '{pool.order}'. To change it: {change}"]
    return "\n".join([ink.dim(head), *others, *notes])


def drain_text(view: DrainView, ink: Ink) -> str:
    """Format the effect of a drain on each job of the node, and the next step."""
    lines = [plain(view.gist), *(f"  {plain(job.text)}" for job in view.jobs), ""]
    if view.is_asked:
        lines.append(
            f"{view.node} is being drained. To use it again: {ink.bold(f'jupyter dlaas uncordon {view.node}')}"
        )
    else:
        lines.append(f"Nothing was changed. To drain the node: {ink.bold(f'jupyter dlaas drain {view.node}')}")
    return "\n".join(lines)


def _device(device: DeviceView, cordoned: str | None) -> str:
    if device.job is None and device.out_of_service:
        return "-" if device.out_of_service == cordoned else f"out: {plain(device.out_of_service)}"
    if device.job is None:
        return "free"
    if device.busy_fraction is None:
        return device.job
    return f"{device.job} {formatting.bar(device.busy_fraction, 8)} {formatting.percent(device.busy_fraction):>4}"


def _node_note(node: NodeView, start: int) -> str:
    if start:
        return ""
    has = f"{formatting.number(node.cpus)} CPUs, {formatting.bytes_text(node.memory_bytes, binary=True)}"
    return f"{has}; {node.cordoned}" if node.cordoned else has


def job_text(view: JobView, ink: Ink) -> str:
    """Format the few lines about a job that follow a submit or an action."""
    notes = [plain(text) for text in (view.status_line, view.reason) if text]
    unit = view.unit if view.size.held * max(1, view.gpus_per_learner) == 1 else f"{view.unit}s"
    size = (
        f"{size_text(view)} {unit}"
        if view.gpus_per_learner
        else f"{view.size.held} {'learner' if view.size.held == 1 else 'learners'}, no GPU"
    )
    notes += [plain(note.text) for note in view.notes if is_report(note)]
    tone = _TONES.get(view.tone, "")
    state = plain(view.state_label) or str(view.state)
    notes += [f"Speed: {plain(view.speedup)}"] if view.speedup else []
    return f"{ink.bold(view.id)}  {ink.paint(state, tone)}  {size}" + "".join(f"\n  {note}" for note in notes)


def stamp(at_s: float) -> str:
    """Format the time of an event: "12 Mar 14:31:07"."""
    then = time.localtime(at_s)
    return f"{then.tm_mday} {time.strftime('%b %H:%M:%S', then)}"


def metrics_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the last value of each metric with its step and epoch, and the number of its values."""
    last: dict[str, tuple[str, ...]] = {}
    counts: Counter[str] = Counter()
    for row in rows:
        for name, value in row.items():
            if name not in _METRIC_KEYS:
                counts[name] += 1
                step, epoch = row["step"], row["epoch"]
                places = ("–" if place is None else f"{place:,}" for place in (step, epoch))
                last[name] = (plain(name), formatting.number(value), *places, f"{counts[name]:,}")
    if not last:
        return "No metrics yet."
    return _rows((("METRIC", "LAST", "STEP", "EPOCH", "VALUES"), *last.values()))


def results_text(view: JobView) -> str:
    """Format the names of the results, and the line of Python that loads them."""
    if not view.results:
        asked = f" It was submitted with -o {','.join(view.outputs)}." if view.outputs else ""
        return f"{view.id} has no results.{asked or ' Submit with -o NAMES to get variables back.'}"
    names = ", ".join(repr(name) for name in view.results)
    load = f"{', '.join(view.results)} = dlaas.result({view.id!r}, {names})"
    lines = (*map(plain, view.results), "", "To load them in Python:", "  import jupyter_dlaas as dlaas", f"  {load}")
    return "\n".join(lines)


def artifacts_table(files: Sequence[Mapping[str, Any]]) -> str:
    """Format the files that a job wrote, with their sizes."""
    if not files:
        return "The job has written no files."
    sizes = [(formatting.bytes_text(int(file["bytes"])), plain(str(file["path"]))) for file in files]
    return _rows([("SIZE", "PATH"), *sizes])
