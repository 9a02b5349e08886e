"""Cost of `import jupyter_dlaas`, and the modules that it loads."""

from __future__ import annotations

import subprocess
import sys

from tests.bench.measuring import Bench, Unmeasurable, in_turn
from tests.bench.table import Line, figure

PROGRAM = """
import sys, time
before = set(sys.modules)
begin = time.perf_counter()
import jupyter_dlaas
print((time.perf_counter() - begin) * 1000)
heavy = "torch numpy kubernetes ipywidgets tornado dlaas_server IPython jupyter_server asyncio".split()
print(*[name for name in heavy if name in sys.modules], len(set(sys.modules) - before))
"""


def measure(bench: Bench) -> list[Line]:
    """In a fresh interpreter each time."""
    brought: list[str] = []

    def once() -> float:
        ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
        if ended.returncode:
            raise Unmeasurable(ended.stderr[-200:])
        first, second = ended.stdout.splitlines()
        brought[:] = second.split()
        return float(first)

    (found,) = in_turn(bench.runs, once)
    *heavy, count = brought
    loads = f"loads {', '.join(heavy) or 'none of torch, kubernetes, ipywidgets, tornado'}; {count} modules"
    return [Line(what="import jupyter_dlaas", bar="≤ 50 ms", measured=figure(found, "ms"), beside=loads)]
