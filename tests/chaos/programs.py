"""Programs whose files tell whether anything was lost or done twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["EPOCHS", "KINDS", "STEPS", "TICKS", "Kind", "undisturbed"]

TICKS: Final = 150
EPOCHS: Final = 60
BATCHES: Final = 8
STEPS: Final = EPOCHS * BATCHES

_TICKS = f"""
import time
for tick in range({TICKS}):
    print("tick", tick, flush=True)
    time.sleep(0.03)
"""
_LOOP = f"""
import json, time
import torch
import jupyter_dlaas as dlaas

torch.manual_seed(0)
data = torch.randn(64, 8)
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
run = dlaas.run()
model, opt = run.prepare(model, opt)
steps = 0
for epoch in run.epochs({EPOCHS}):
    for batch in run.batches(data, {64 // BATCHES}, shuffle=False):
        opt.zero_grad()
        (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        opt.step()
        steps += 1
        time.sleep(0.01)
    run.log(steps=steps)
if run.rank == 0:
    weights = [p.detach().flatten().tolist() for p in model.parameters()]
    (run.output_dir / "end.json").write_text(json.dumps({{"steps": steps, "weights": weights}}))
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job: its program, how many learners it may have, and what else it asks for."""

    name: str
    source: str
    learners: tuple[int, int]
    spec: dict[str, Any]

    @property
    def is_loop(self) -> bool:
        return self.source is _LOOP


_TORCH: Final = {"framework": "pytorch", "checkpoint_every_s": 0.5}
KINDS: Final = (
    Kind("plain", _TICKS, (1, 1), {}),
    Kind("alone", _LOOP, (1, 1), _TORCH),
    Kind("elastic", _LOOP, (1, 3), _TORCH),
    Kind("gang", _LOOP, (2, 2), {**_TORCH, "elastic": "off"}),
)


def undisturbed(folder: Path) -> dict[str, Any]:
    """Run the loop as a plain script, outside of any job; what it ends with."""
    (folder / "loop.py").write_text(_LOOP)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DLAAS_")}
    subprocess.run([sys.executable, "loop.py"], cwd=folder, env=environment, check=True, capture_output=True)
    (end,) = folder.rglob("end.json")
    found: dict[str, Any] = json.loads(end.read_text())
    return found
