"""`jupyter dlaas check`: the median notebook of our own, and a generated one of 300 cells with 40 lines each."""

from __future__ import annotations

import io
import json
import random
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median

from jupyter_dlaas.analysis.cells import clean_cell
from jupyter_dlaas.cli.check import run
from tests.bench.measuring import Bench
from tests.bench.table import Line, figure

TESTS = Path(__file__).parents[2]
CELLS, LINES, EACH = 300, 40, 10
"""Cells, lines in each, and every how many of them one trains."""


def measure(bench: Bench) -> list[Line]:
    """In this process, each notebook as if it were the first: no cell is known from before."""
    small = [path.read_bytes() for path in sorted(TESTS.rglob("notebooks/*.ipynb"))]
    large = generated()
    times = [_took_ms(content) for content in small]
    runs = [_took_ms(large) for _ in range(max(3, bench.runs // 2))]
    return [
        Line(
            what=f"check: {len(small)} notebooks of our own",
            bar="≤ 50 ms for the median",
            measured=figure([whole for whole, _ in times], "ms"),
            beside=f"the largest {max(whole for whole, _ in times):.0f} ms",
        ),
        Line(
            what=f"check: {CELLS} cells × {LINES} lines, {CELLS // EACH} of them train",
            bar="≤ 2,000 ms",
            measured=figure([whole for whole, _ in runs], "ms"),
            beside=f"{median(busy for _, busy in runs):,.0f} ms of the processor's",
        ),
    ]


def generated() -> bytes:
    """Return a long notebook as people write them: tables, classes, helpers that call each other, pictures, loops."""
    chance = random.Random(1)
    imports = (
        "import torch\nimport numpy as np\nimport pandas as pd\nimport matplotlib.pyplot as plt\nfrom torch import nn"
    )
    sources = [imports, *(_cell(chance, number) for number in range(CELLS))]
    cells = [{"cell_type": "code", "source": source} for source in sources]
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": cells}).encode()


def _cell(chance: random.Random, n: int) -> str:
    lines: list[str] = []
    while len(lines) < LINES:
        other = chance.randrange(n + 1)
        lines += chance.choice(
            [
                [
                    f"df_{n} = pd.read_csv('{n}.csv')",
                    f"df_{n}['a'] = df_{n}['b'] * {n}",
                    f"df_{n}.dropna(inplace=True)",
                ],
                [
                    f"class Net{n}(nn.Module):",
                    "    def __init__(self, n):",
                    "        super().__init__()",
                    "        self.fc = nn.Linear(n, 2)",
                    "    def forward(self, x):",
                    f"        return helper_{other}(self.fc(x))",
                ],
                [f"def helper_{n}(x):", "    for i in range(3):", f"        x = x + helper_{other}(x)", "    return x"],
                ["plt.figure(figsize=(3, 4))", f"plt.plot(df_{other}['a'], label='x')", "plt.legend()", "plt.show()"],
                [f"items_{n} = []", "for f in range(9):", f"    items_{n}.append([f, {n}])", f"print(len(items_{n}))"],
                [f"model_{n} = Net{other}({n})", f"opt_{n} = torch.optim.Adam(model_{n}.parameters(), lr=1e-3)"],
            ]
        )
    if n % EACH == EACH - 1:
        lines += ["for epoch in range(2):", f"    model_{n}(items_{n}).sum().backward()", f"    opt_{n}.step()"]
    return "\n".join(lines)


def _took_ms(content: bytes) -> tuple[float, float]:
    """By the clock, and of the processor; as the command does it."""
    clean_cell.cache_clear()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        path = Path(folder) / "a.ipynb"
        path.write_bytes(content)
        begin, busy = time.perf_counter(), time.process_time()
        run([str(path)], None, as_json=True)
        return (time.perf_counter() - begin) * 1000, (time.process_time() - busy) * 1000
