"""A job of high priority arrives: a lower one gives its devices up at a checkpoint and goes on later at its step."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.whole.site import Site, until

Build = Callable[..., Site]
LONG = """
import time
import jupyter_dlaas as dlaas
import torch

run = dlaas.run()
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
model, opt = run.prepare(model, opt)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
seen = 0
for epoch in run.epochs(35):
    for x, y in run.batches(data, 16):
        opt.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        opt.step()
        seen += 1
        time.sleep(0.4)
print("trained steps", seen, flush=True)
"""
BRIEF = "import time\ntime.sleep(1)\nprint('done', flush=True)\n"


def test_who_is_preempted_waits_with_a_sentence_and_goes_on_at_its_step(site: Build) -> None:
    here = site(slots=2)
    low = here.submit(LONG, name="low", gpus="2", checkpoint_every="1s")
    until(lambda: (low.view.progress.step if low.view.progress else 0) > 4, "the long one trains", 60)

    urgent = here.submit(BRIEF, name="urgent", gpus="2", priority="high")
    until(lambda: urgent.status == "PROCESSING", "the urgent one runs", 90)
    waiting = low.view
    assert waiting.state == "QUEUED"
    assert "It made room: urgent-2" in waiting.reason
    assert "has priority 100. Nothing was lost: it goes on from step" in waiting.reason
    at = int(re.search(r"goes on from step (\d+)", waiting.reason)[1])  # type: ignore[index]
    assert at > 0

    urgent.wait(60)
    low.wait(120)
    assert (urgent.status, low.status) == ("COMPLETED", "COMPLETED")
    story = low.story()
    assert f"train from step {at}." in story
    told = ("Makes room: urgent-2", "Back in the queue. Nothing was lost", "Waits: needs 2 CPU slots", "Got 2 learners")
    assert [story.rindex(one) for one in told] == sorted(story.rindex(one) for one in told), "each decision, in order"
    assert "trained steps 140" in low.logs()  # the script's own count goes on too: none lost, none twice
