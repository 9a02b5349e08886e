"""Time until an engine is usable on a machine where none runs."""

from __future__ import annotations

import time

from jupyter_dlaas.client import engine_control
from tests.bench.measuring import Bench, in_turn, milliseconds
from tests.bench.table import Line, figure


def measure(bench: Bench) -> list[Line]:
    """From the first request (which starts it) to its answer, with the pool's earlier jobs in the store."""

    def first_answer() -> float:
        engine_control.stop(bench.site.pool)
        begin = time.monotonic_ns()
        bench.site.client.pool()
        return milliseconds(begin, time.monotonic_ns())

    (found,) = in_turn(bench.runs, first_answer)
    return [
        Line(
            what="engine usable from nothing",
            bar="≤ 0.3 s",
            measured=figure(found, "ms"),
            beside="(Ray 9–17 s, ipyparallel 6.7 s)",
        )
    ]
