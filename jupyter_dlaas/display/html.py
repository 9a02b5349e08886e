"""Output of a job in a cell: data for the live card, plain HTML for other readers, one line of text.

The HTML is a table without styles, classes, scripts, links or images, at most 8 kB; all text of a job is escaped.
"""

from __future__ import annotations

import html
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.display import formatting
from jupyter_dlaas.wire.codec import DlaasError, Json, decode_float, encode
from jupyter_dlaas.wire.membership_history import ran_s
from jupyter_dlaas.wire.protocol import MIME, Bundle, JobView, State

if TYPE_CHECKING:
    from jupyter_dlaas.api.jobs import Job
    from jupyter_dlaas.client.http import Client

__all__ = ["BYTES_MAX", "bundle_of", "forms", "html_of", "mimebundle", "plain_of"]

SCHEMA: Final = 1
BYTES_MAX: Final = 8000
POINTS_MAX: Final = 200
LINES_MAX: Final = 20
_LINE_MAX: Final = 400
_TAIL_BYTES: Final = 8192
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_BLOCKS_WIDE: Final = 30
_CURVES_SHOWN: Final = 6
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def mimebundle(job: Job) -> dict[str, Any]:
    """Return what IPython shows for a Job. Never raises: without an engine it shows the last known view."""
    return forms(bundle_of(job))


def forms(bundle: Bundle) -> dict[str, Any]:
    """Return the three forms of a bundle."""
    return {MIME: encode(bundle), "text/html": html_of(bundle), "text/plain": plain_of(bundle)}


def bundle_of(job: Job, *, is_new: bool = False) -> Bundle:
    """Return the current job with its curves and last log lines. `is_new`: just submitted, so no request is needed."""
    view = job.last_view
    curves: dict[str, Json] = {}
    log: tuple[str, ...] = ()
    client = job.follow().client
    try:
        pool = _pool_name(client)
        if not is_new:
            view = job.view
            curves = {name: thinned(points) for name, points in client.curves(view.id, points=POINTS_MAX).items()}
            log = tail(client, view)
    except DlaasError:  # no engine, or the job was deleted: use the last known view
        pool = _pools.get(client.endpoints, "")
    return Bundle(schema=SCHEMA, pool=pool, job=view, curves=curves, log=log)


_pools: dict[Any, str] = {}


def _pool_name(client: Client) -> str:
    """Return the pool's name; requested once per client, since an endpoint serves one pool."""
    if client.endpoints not in _pools:
        _pools[client.endpoints] = client.pool().name
    return _pools[client.endpoints]


def tail(client: Client, view: JobView, *, lines_max: int = LINES_MAX) -> tuple[str, ...]:
    """Return the last lines of the log without terminal codes."""
    if view.started_s is None:
        return ()
    part = client.log(view.id, offset=-_TAIL_BYTES)
    lines = str(part["text"]).removesuffix("\n").split("\n")
    if int(part["from"]) > 0 and len(lines) > 1:
        lines = lines[1:]  # the first line may be incomplete
    return tuple(cleaned(line)[:_LINE_MAX] for line in lines[-lines_max:]) if lines != [""] else ()


def cleaned(line: str) -> str:
    """Return a line as a terminal shows it, without colours: the last state of a progress bar."""
    shown = _ESCAPES.sub("", line.removesuffix("\r")).rpartition("\r")[2]
    return _CONTROL.sub("", shown)


def thinned(points: Json) -> list[Json]:
    """Return at most 200 points of a curve, including the first and the last."""
    found = points if isinstance(points, list) else []
    if len(found) <= POINTS_MAX:
        return found
    last = len(found) - 1
    return [found[round(n * last / (POINTS_MAX - 1))] for n in range(POINTS_MAX)]


# --------------------------------------------------------------------------------------------------------- one line


def plain_of(bundle: Bundle) -> str:
    """Format one line, such as `resnet-48  PROCESSING  epoch 8/30, 24%  loss 0.412  4 GPUs (1-8)`."""
    view = bundle.job
    return "  ".join(_one_line(part) for part in (view.id, str(view.state), *_gist(view, bundle.curves)) if part)


def _gist(view: JobView, curves: Mapping[str, Json]) -> list[str]:
    """Return details of a job beside its name and state, the most informative first."""
    if view.state is State.FAILED and view.failure is not None:
        where = f"{view.failure.where.text}: " if view.failure.where else ""
        return [f"{view.failure.cause}, {where}{view.failure.what}"]
    parts = [f"{name} {formatting.number(value)}" for name, value in _last_values(curves)[:3]]
    if view.state is State.COMPLETED:
        results = [f"results: {', '.join(view.results)}"] if view.results else []
        return [*_took(view), *parts, *results]
    if view.state is State.PROCESSING:
        return [*_progress(view), *parts, _size(view), *([view.reason] if view.reason else [])]
    return [part for part in (view.status_line, view.reason) if part] or [_size(view)]


def _one_line(text: str) -> str:
    return _CONTROL.sub("", _ESCAPES.sub("", " ".join(str(text).split())))[:300]


def _progress(view: JobView) -> list[str]:
    progress = view.progress
    if progress is None:
        return []
    place = formatting.place(progress.epoch, progress.epochs, progress.step)
    return [f"{place}, {formatting.percent(progress.fraction)}" if progress.fraction is not None else place]


def _size(view: JobView) -> str:
    each = max(1, view.gpus_per_learner)
    held, low, high = (n * each for n in (view.size.held, view.size.min, view.size.max))
    unit = view.unit if held == 1 else f"{view.unit}s"
    return f"{held} {unit}" if low == high else f"{held} {unit} ({low}-{high})"


def _took(view: JobView) -> list[str]:
    trained_s = ran_s(view.started_s, view.ended_s, view.interruptions)
    return [] if trained_s is None else [formatting.duration(trained_s)]


def _values(points: Json) -> list[float]:
    """Return the values of a curve in order, including NaN and infinity."""
    rows = points if isinstance(points, list) else []
    return [decode_float(point[2]) for point in rows if isinstance(point, list) and len(point) > 2]


def _last_values(curves: Mapping[str, Json]) -> list[tuple[str, float]]:
    return [(name, values[-1]) for name, points in curves.items() if (values := _values(points))]


# ------------------------------------------------------------------------------------------------------------- HTML


def blocks(values: Sequence[float]) -> str:
    """Draw a curve in block characters, with "×" for NaN and infinity."""
    wide = min(_BLOCKS_WIDE, len(values))
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low = min(finite)
    span = (max(finite) - low) or 1.0
    shown = [values[round(n * (len(values) - 1) / max(1, wide - 1))] for n in range(wide)]
    return "".join(_BLOCKS[min(7, int((v - low) / span * 8))] if math.isfinite(v) else "×" for v in shown)


def html_of(bundle: Bundle) -> str:
    """Format a plain table for readers without the extension, shortened to 8 kB, the least informative rows first."""
    log = bundle.log[-10:]
    for lines, width in ((10, 400), (10, 200), (5, 120), (2, 80), (0, 60), (0, 20)):
        log = log[-lines:] if lines else ()
        text = _html(replace(bundle, log=log), width)
        if len(text.encode()) <= BYTES_MAX:
            return text
    return f"<p><b>{_escaped(bundle.job.id, 200)}</b> · {_escaped(bundle.job.state, 20)}</p>"


def _html(bundle: Bundle, width: int) -> str:
    view = bundle.job
    rows = [(_escaped(name, width), value) for name, value in _rows(bundle, width)]
    table = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows)
    body = f"<table><tbody>{table}</tbody></table>" if table else ""
    if bundle.log:
        count = f"Last {len(bundle.log)} log line{'s' if len(bundle.log) > 1 else ''}"
        lines = "\n".join(_escaped(line, width) for line in bundle.log)
        body += f"<details><summary>{count}</summary><pre>{lines}</pre></details>"
    parts = [f"<b>{_escaped(view.id, 200)}</b>", *(_escaped(part, width) for part in _head(view) if part)]
    return f"<div><p>{' · '.join(parts)}</p>{body}</div>"


def _head(view: JobView) -> list[str]:
    state = (view.state_label or str(view.state)).lower()
    if view.ended_s is not None:
        then = time.localtime(view.ended_s)
        when = f"{state} {then.tm_mday} {time.strftime('%b %Y, %H:%M', then)}"
        return [when, *_took(view)]
    return [state, view.status_line, *_progress(view), _size(view) if view.size.held else ""]


def _rows(bundle: Bundle, width: int) -> list[tuple[str, str]]:
    """Return the name (raw) and value (escaped) of each row."""
    view = bundle.job
    rows: list[tuple[str, str]] = []
    if view.reason and not view.state.is_final:
        rows.append(("Why", _escaped(view.reason, width)))
    if view.failure is not None:
        rows.append(("What", _escaped(view.failure.what, width)))
        if view.failure.where is not None:
            rows.append(("Where", _escaped(f"{view.failure.where.label}, line {view.failure.where.line}", width)))
        rows.append(("What to do", _escaped(view.failure.advice, width)))
    for name, points in list(bundle.curves.items())[:_CURVES_SHOWN]:
        if values := _values(points):
            first, last = formatting.number(values[0]), formatting.number(values[-1])
            rows.append((name, f"{blocks(values)} {first} → {last}"))
    if view.resizes:
        each = max(1, view.gpus_per_learner)
        sizes = [view.resizes[0].before, *(resize.after for resize in view.resizes)]
        rows.append((f"{view.unit}s", " → ".join(str(n * each) for n in sizes[-12:])))
    if view.speedup:
        rows.append(("Speed", _escaped(view.speedup, width)))
    if view.results:
        rows.append(("Results", _escaped(", ".join(view.results), width)))
    parts = [note for note in view.notes if note.code not in ("suggest", "suggest_part")]
    notes = "<br>".join(_escaped(note.text, width) for note in parts[:3])
    if notes:
        more = f"<br>and {len(parts) - 3} more: %%train --dry-run" if len(parts) > 3 else ""
        rows.append(("Notes", notes + more))
    return rows


def _escaped(text: str, longest: int) -> str:
    shown = _CONTROL.sub("", _ESCAPES.sub("", str(text)))
    return html.escape(shown if len(shown) <= longest else shown[: longest - 1] + "…")
