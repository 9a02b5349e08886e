"""Pictures of the product for README and documentation, from real jobs in a real JupyterLab, in both themes.

`python -m tests.screenshots` (`make screenshots`) writes them to docs/_static/screenshots.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Locator

from tests.page.browser import Lab, a_browser
from tests.page.conftest import EXPOSED
from tests.whole.site import Site, standing, until

OUT: Final = Path(__file__).parent.parent / "docs" / "_static" / "screenshots"
SCALE: Final = 1.5
WIDTH: Final = 1180
HEIGHT: Final = 1000
SLOW_S: Final = 240.0
"""Deadline for a job's steps and for the page on a busy machine."""
THEMES: Final = ("light", "dark")
LOAD: Final = "%load_ext jupyter_dlaas"
SETUP: Final = """\
import time
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
train_set = torch.utils.data.TensorDataset(images[:1792], labels[:1792])  # whole batches: an even loss curve
x, y = torch.randn(32, 64), torch.randint(0, 11, (32,))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)"""
FAILS: Final = """\
%%train broken
torch.manual_seed(0)
y[0] = 10
loss = nn.functional.cross_entropy(model(x), y)
loss.backward()"""
FIRST_JOB: Final = """\
%%train digits -o model
for epoch in range(1, 61):
    opt.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    opt.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")"""
NEW_MODEL: Final = """\
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
opt = torch.optim.Adam(model.parameters(), lr=5e-4)"""
LOOP: Final = """\
%%train {name} --gpus {gpus} -o model
run = dlaas.run()
model, opt = run.prepare(model, opt)
for epoch in run.epochs({epochs}):
    for x, y in run.batches(train_set, 64):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        time.sleep(len(x) * 0.001)  # the data set is tiny: leaves time to watch
    run.log(loss=loss)
    print(f"epoch {{epoch + 1}}: loss {{loss:.4f}}")"""


def cells() -> list[str]:
    """Return the notebook: each training cell ends in another state. The first jobs are those of *Get started*."""
    return [
        LOAD,
        SETUP,
        FAILS,
        FIRST_JOB,
        NEW_MODEL,
        LOOP.format(name="baseline", gpus="1", epochs=400),
        LOOP.format(name="elastic", gpus="1:2", epochs=400),
        LOOP.format(name="larger", gpus="2", epochs=20),
    ]


CARDS: Final = {"failed": 2, "completed": 3, "halted": 5, "processing": 6, "queued": 7}
"""State of a card -> its cell."""


def started(lab: Lab, index: int, name: str) -> str:
    """Run a training cell, and return the handle of its job."""
    lab.run(index)
    card = lab.page.wait_for_selector(f'[aria-label^="Job {name}-"]', state="attached")
    assert card is not None
    return (card.get_attribute("aria-label") or "").removeprefix("Job ")


def put_in_states(lab: Lab, site: Site) -> None:
    """Bring a job into each state."""
    for index in (0, 1):
        lab.run(index)
        lab.ran(index)
    lab.is_at(started(lab, CARDS["failed"], "broken"), "FAILED")
    lab.is_at(started(lab, CARDS["completed"], "digits"), "COMPLETED")
    lab.run(4)
    lab.ran(4)
    halted = started(lab, CARDS["halted"], "baseline")
    until(lambda: steps(site, halted) > 100, "it trains", SLOW_S)
    site.job(halted).halt()
    lab.is_at(halted, "HALTED")
    elastic = started(lab, CARDS["processing"], "elastic")
    until(lambda: steps(site, elastic) > 300, "it trains", SLOW_S)
    site.job(elastic).scale(1)
    until(lambda: site.job(elastic).view.size.held == 1, "it shrinks", SLOW_S)
    until(lambda: steps(site, elastic) > 500, "it trains", SLOW_S)
    site.job(elastic).scale(2)
    until(lambda: site.job(elastic).view.size.held == 2, "it grows", SLOW_S)
    until(lambda: steps(site, elastic) > 900, "it trains", SLOW_S)
    lab.is_at(started(lab, CARDS["queued"], "larger"), "QUEUED")


def steps(site: Site, job: str) -> int:
    progress = site.job(job).view.progress
    return 0 if progress is None else progress.step or 0


def take(lab: Lab, theme: str) -> Iterator[tuple[str, Locator]]:
    """Yield the name of each picture with what it shows."""
    for state, index in CARDS.items():
        lab.cell(index).scroll_into_view_if_needed()
        yield f"card-{state}-{theme}", lab.cell(index).locator(".jp-Cell-outputWrapper")
    lab.cell(CARDS["processing"]).scroll_into_view_if_needed()
    yield f"cell-and-card-{theme}", lab.cell(CARDS["processing"])
    yield f"panel-{theme}", lab.panel()
    lab.page.evaluate("window.jupyterapp.commands.execute('dlaas:train-notebook').catch(() => {}) && undefined")
    dialog = lab.page.get_by_role("dialog")
    dialog.get_by_text("As a job of its own").first.wait_for()  # the result of the check, with which the dialog grows
    yield f"dialog-train-{theme}", dialog.locator(".jp-Dialog-content").first
    dialog.get_by_role("button", name="Cancel").click()


@contextmanager
def laboratory(folder: Path) -> Iterator[tuple[Lab, Site]]:
    """Open a page of JupyterLab on a pool of two slots."""
    with standing(folder, "site", folder / "aside", slots=2) as site, a_browser() as browser:
        context = browser.new_context(
            device_scale_factor=SCALE, viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce"
        )
        lab = Lab.open(context, site.serve(EXPOSED))
        lab.page.set_default_timeout(SLOW_S * 1000)
        yield lab, site


def main() -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, laboratory(Path(folder)) as (lab, site):
        lab.notebook("digits.ipynb", cells())
        lab.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        put_in_states(lab, site)
        for theme in THEMES:
            if theme == "dark":
                lab.dark()
            for name, shown in take(lab, theme):
                shown.screenshot(path=str(OUT / f"{name}.png"), animations="disabled")
                print(OUT / f"{name}.png", flush=True)
        for view in site.client.jobs(limit=100):
            if not view.state.is_final:
                site.job(view.id).cancel()
    return 0


if __name__ == "__main__":
    sys.exit(main())
