"""From submit to the user's first line, and to a usable torch; beside `python script.py`."""

from __future__ import annotations

import time

from tests.bench.measuring import TORCH, TRIVIAL, Bench, in_turn, milliseconds, plain, stamps
from tests.bench.table import Line, figure, ratio


def measure(bench: Bench) -> list[Line]:
    """Both through HTTP on the pool's socket, accepted durably, in a process of its own."""
    return [
        _line(bench, TRIVIAL, "submit → first user line", "≤ 25 ms, ≤ 3 × plain python", is_torch=False),
        _line(bench, TORCH, "submit → torch usable (warm)", "≤ 30 ms, ≤ 1/20 of python script.py", is_torch=True),
    ]


def _line(bench: Bench, source: str, what: str, bar: str, *, is_torch: bool) -> Line:
    which = 1 if is_torch else 0
    script = bench.script(source)
    if is_torch:
        bench.site.submit(source).wait()  # whoever keeps torch warm knows now that it is wanted

    def ours() -> float:
        begin = time.monotonic_ns()
        job = bench.site.submit(source)
        job.wait()
        return milliseconds(begin, stamps(str(job.client.log(job.id)["text"]))[which])

    def theirs() -> float:
        begin, text, _ = plain(script)
        return milliseconds(begin, stamps(text)[which])

    a, b = in_turn(bench.runs, ours, theirs)
    measured, beside = figure(a, "ms"), figure(b, "ms")
    return Line(
        what=what,
        bar=bar,
        measured=measured,
        beside="python script.py",
        beside_figure=beside,
        times=ratio(measured, beside),
    )
