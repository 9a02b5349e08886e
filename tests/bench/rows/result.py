"""From submit to the result in hand, of a job that uses torch; beside `python script.py` and jupyter-scheduler."""

from __future__ import annotations

import time

from tests.bench import scheduler
from tests.bench.measuring import TORCH, Bench, Unmeasurable, in_turn, milliseconds, plain
from tests.bench.table import Line, figure, not_measured, ratio

WHAT = "submit → result back, torch (warm)"


def measure(bench: Bench) -> list[Line]:
    """Our side ends with the value unpickled here, theirs with the end of the process or the state COMPLETED."""
    script = bench.script(TORCH)
    bench.site.submit(TORCH, outputs=("history",)).wait()

    def ours() -> float:
        begin = time.monotonic_ns()
        job = bench.site.submit(TORCH, outputs=("history",)).wait()
        if job.result("history") != [2.0]:
            raise Unmeasurable("the result is not what the job made")
        return milliseconds(begin, time.monotonic_ns())

    def theirs() -> float:
        begin, _, end = plain(script)
        return milliseconds(begin, end)

    a, b = in_turn(bench.runs, ours, theirs)
    measured, beside = figure(a, "ms"), figure(b, "ms")
    lines = [
        Line(
            what=WHAT,
            bar="≤ 60 ms, ≤ 1/15 of python script.py",
            measured=measured,
            beside="python script.py",
            beside_figure=beside,
            times=ratio(measured, beside),
        )
    ]
    if bench.with_peers:
        try:
            with scheduler.running(bench.site.folder) as peer:
                c, d = in_turn(2, ours, lambda: peer.run(TORCH))
        except Unmeasurable as error:
            return [*lines, not_measured(WHAT, "(peer: jupyter-scheduler)", str(error))]
        measured, beside = figure(c, "ms"), figure(d, "ms")
        lines.append(
            Line(
                what=WHAT,
                bar="(published: 9373 ms)",
                measured=measured,
                beside="jupyter-scheduler",
                beside_figure=beside,
                times=ratio(measured, beside),
            )
        )
    return lines
