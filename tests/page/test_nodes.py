"""The side panel: a node is emptied, by keyboard: what it would do is shown first, and just that is done; and of a long
line who runs and the beginning is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.page.browser import Lab
from tests.selection import exhaustive
from tests.whole.site import Site, standing, until

Open = Callable[..., Lab]
LIVE = """
import time
import torch
import jupyter_dlaas as dlaas
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
run = dlaas.run()
model, opt = run.prepare(model, opt)
for epoch in run.epochs(100_000):
    for batch in run.batches(torch.randn(64, 4), 16):
        opt.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        opt.step()
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def site(ground: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(ground, "site", tmp_path_factory.mktemp("page"), slots=2, nodes=2) as made:
        yield made


def trains_on(site: Site, job: str, *nodes: str) -> bool:
    view = site.job(job).view
    is_calm = view.state == "PROCESSING" and view.transition is None
    return is_calm and sorted(one.node for one in view.learners) == list(nodes)


def started(site: Site, name: str) -> str:
    job = site.submit(LIVE, name=name, gpus="1:2", placement="spread").id
    until(lambda: trains_on(site, job, "n1", "n2"), f"{job} trains on both nodes")
    return job


def choose(panel: Locator, node: str, *keys: str) -> Locator:
    """Open the node's menu and press these keys in it. Returns the button of the menu."""
    button = panel.get_by_role("button", name=f"Actions for node {node}")
    button.focus()
    panel.page.keyboard.press("Enter")
    panel.page.get_by_role("menuitem", name="Drain…").wait_for()
    for key in keys:
        panel.page.keyboard.press(key)
    return button


@exhaustive
def test_panel_drains_a_node_as_previewed_and_uncordons_it(lab: Open, site: Site, tmp_path: Path) -> None:
    left = started(site, "left")
    page = lab()
    page.notebook("empty.ipynb", ["1 + 1"])
    panel = page.panel()
    dialog = page.page.get_by_role("dialog", name="Drain n1")
    rows = dialog.get_by_role("table", name="Jobs on n1").get_by_role("rowheader")

    button = choose(panel, "n1", "ArrowDown", "Enter")
    expect(dialog).to_contain_text("n1: 1 job shrinks.")
    expect(rows).to_have_text([left])
    expect(dialog.get_by_role("row").nth(1)).to_contain_text("Shrinks from 2 to 1 learner and continues.")
    page.shot(tmp_path / "drain-light.png")
    page.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(button).to_be_focused()
    assert all(node.cordoned is None for node in site.client.pool().nodes), "a preview does nothing"

    choose(panel, "n1", "ArrowDown", "Enter")
    expect(rows).to_have_text([left])
    right = started(site, "right")
    dialog.get_by_role("button", name="Drain n1").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Nothing was done: the pool changed in the meantime.")
    expect(rows).to_have_text([left, right])
    assert all(node.cordoned is None for node in site.client.pool().nodes)

    again = dialog.get_by_role("button", name="Drain n1")
    expect(again).to_be_enabled()
    expect(again).to_be_focused()
    page.page.keyboard.press("Enter")
    expect(panel.get_by_role("status")).to_contain_text("n1 is being drained by")
    for job in (left, right):
        until(partial(trains_on, site, job, "n2"), f"{job} trains on with one")
        assert [(one.before, one.after, one.by) for one in site.job(job).view.resizes] == [(2, 1, "drain")]
        assert site.job(job).view.restarts == 0
    expect(panel.get_by_role("img", name="n1 · 0: out of service, being drained by")).to_be_visible()
    page.dark()
    page.shot(tmp_path / "drained-dark.png")

    choose(panel, "n1", "ArrowUp", "Enter")  # the last one: Uncordon
    expect(panel.get_by_role("status")).not_to_contain_text("n1")
    for job in (left, right):
        until(partial(trains_on, site, job, "n1", "n2"), f"{job} grows back")


def test_cordoned_node_keeps_its_running_jobs(lab: Open, site: Site, tmp_path: Path) -> None:
    job = started(site, "kept")
    page = lab(width=1000)
    page.notebook("empty.ipynb", ["1 + 1"])
    panel = page.panel()

    choose(panel, "n1", "ArrowDown", "Enter")
    dialog = page.page.get_by_role("dialog", name="Drain n1")
    expect(dialog).to_contain_text("Cordoning only keeps new jobs away; running jobs stay.")
    page.shot(tmp_path / "cordon.png")
    dialog.get_by_role("button", name="Cordon only").click()
    expect(panel.get_by_role("status")).to_contain_text("n1 is cordoned by")
    assert [node.cordoned is not None for node in site.client.pool().nodes] == [True, False]
    assert trains_on(site, job, "n1", "n2")

    choose(panel, "n1")
    expect(page.page.get_by_role("menuitem", name="Cordon", exact=True)).to_have_count(0)
    page.page.get_by_role("menuitem", name="Uncordon").click()
    expect(panel.get_by_role("status")).not_to_contain_text("n1")


@exhaustive
def test_running_and_first_queued_of_hundreds_are_listed(lab: Open, site: Site, tmp_path: Path) -> None:
    holder = site.submit("import signal\nsignal.pause()\n", name="holder", learners=site.client.pool().devices_total).id
    until(lambda: site.job(holder).view.state == "PROCESSING", "one job holds the pool")
    waiting = [site.submit("pass\n", name="next").id for _ in range(320)]
    page = lab()
    page.notebook("empty.ipynb", ["1 + 1"])
    panel = page.panel()
    listed = panel.get_by_role("list", name="Jobs of Other jobs").get_by_role("listitem")

    expect(listed.first).to_contain_text(holder)
    expect(listed).to_have_count(100)
    expect(listed.last).to_contain_text(waiting[98])
    expect(panel.get_by_text("270 more jobs are queued.")).to_be_visible()
    expect(panel.get_by_text("jupyter dlaas jobs --limit 1000")).to_be_visible()
    page.shot(tmp_path / "many-nodes-light.png")

    site.job(waiting[0]).cancel()
    expect(listed.last).to_contain_text(waiting[99])
    page.dark()
    page.shot(tmp_path / "many-nodes-dark.png")
