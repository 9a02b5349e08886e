"""A plain loop, as people write it, with nothing of ours but `%%train`: its card has progress, curves and pictures."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.page.browser import Lab
from tests.selection import exhaustive
from tests.whole.site import Site, until

Open = Callable[..., Lab]
LOAD = "%load_ext jupyter_dlaas"
SETUP = """\
import time
import torch
import matplotlib.pyplot as plt
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.notebook import tqdm
torch.manual_seed(0)
x = torch.randn(400, 8)
data = TensorDataset(x, (x.sum(1) > 0).long())
loader = DataLoader(data, batch_size=40, shuffle=True)
model = nn.Linear(8, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)"""
TRAIN = """\
%%train plain --gpus 1
losses = []
for epoch in tqdm(range(30), desc="training"):
    total, correct = 0.0, 0
    for inputs, labels in tqdm(loader, leave=False):
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
        correct += (outputs.argmax(1) == labels).sum().item()
        time.sleep(0.02)
    losses.append(total / len(loader))
    print(f"Epoch {epoch + 1}/30 | train loss: {losses[-1]:.4f} | train acc: {correct / len(data):.2%}")
plt.plot(losses)
plt.xlabel("epoch")
plt.show()"""
SILENT = """\
%%train silent --gpus 1
import numpy as np
weights = np.ones(8)
for epoch in range(100000):
    predicted = x.numpy() @ weights
    error = ((predicted - x.numpy().sum(1) * 2) ** 2).mean()
    weights += 0.01
    time.sleep(0.1)"""


def submitted(lab: Lab, name: str, cell: str) -> str:
    lab.notebook(f"{name}.ipynb", [LOAD, SETUP, cell])
    for index in (0, 1):
        lab.run(index)
        lab.ran(index)
    lab.run(2)
    error = '[data-mime-type="application/vnd.jupyter.error"]'
    found = lab.page.wait_for_selector(f'[aria-label^="Job {name}-"], {error}')
    assert found is not None
    label = found.get_attribute("aria-label")
    assert label is not None, found.inner_text()
    return label.removeprefix("Job ")


def test_bars_and_prints_become_progress_and_curves(lab: Open, site: Site) -> None:
    page = lab()
    job = submitted(page, "plain", TRAIN)
    page.is_at(job, "PROCESSING")
    card = page.card(job)
    card.get_by_text(re.compile(r"^Epoch ([3-9]|[12]\d) of 30$")).first.wait_for()
    card.get_by_role("img", name=re.compile(r"^Loss, train, 0\.\d+, from the log$")).wait_for()
    card.get_by_role("img", name=re.compile(r"^Acc, train, [\d.]+\s?%, from the log$")).wait_for()
    assert card.get_by_text("from the log", exact=True).count() == 2
    page.is_at(job, "COMPLETED")

    assert len([one for one in site.job(job).metrics() if "train_loss" in one]) == 30
    card.get_by_text("Pictures", exact=True).click()
    picture = card.get_by_role("img", name="figure-001.png")
    picture.wait_for()
    until(lambda: picture.evaluate("image => image.naturalWidth") > 100, "the figure is drawn")


@exhaustive
def test_silent_loop_gets_a_logging_hint_with_its_names(lab: Open, site: Site) -> None:
    page = lab()
    job = submitted(page, "silent", SILENT)
    page.is_at(job, "PROCESSING")
    card = page.card(job)
    card.get_by_text("Notes", exact=True).click()
    card.get_by_text("run.log(error=error)").wait_for()
    site.job(job).cancel()
    page.is_at(job, "CANCELLED")

    assert card.get_by_text("run.log(error=error)").count() == 0
