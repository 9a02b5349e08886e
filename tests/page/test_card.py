"""A cell, its card, and a person: in a real JupyterLab, in a real browser."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from jupyter_dlaas.wire.protocol import Resize
from tests.page.browser import Lab
from tests.page.conftest import EXPOSED
from tests.selection import each_nth, exhaustive
from tests.whole.site import Server, Site, kill, until

Open = Callable[..., Lab]
LOAD = "%load_ext jupyter_dlaas"
SETUP = """\
import time
import torch
torch.manual_seed(0)
train_set = torch.utils.data.TensorDataset(torch.randn(400, 8), torch.randint(0, 2, (400,)))
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)"""
TRAIN = """\
%%train {name} --gpus 1:2 -o history
run = dlaas.run()
model, opt = run.prepare(model, opt)
for epoch in run.epochs({epochs}):
    for x, y in run.batches(train_set, 40):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        time.sleep(0 if (run.output_dir / "hurry").exists() else 0.02)
    run.log(loss=loss)
    print(f"epoch {{epoch}} rank {{run.rank}}", flush=True)
history = run.history"""
BLOCK = "import time; time.sleep({seconds}); print('the kernel is free again')"
WATCH = """
window.dlaasSeen = [];
new MutationObserver(() => {
  for (const card of document.querySelectorAll('[role=region][aria-label^="Job "]')) {
    const now = card.dataset.status;
    if (window.dlaasSeen.at(-1) !== now) window.dlaasSeen.push(now);
  }
}).observe(document.body, {subtree: true, childList: true, attributes: true, attributeFilter: ['data-status']});
"""


def started(lab: Lab, name: str, notebook: str, epochs: int, after: str = "1 + 1") -> str:
    """Run the training cell of a notebook. Return the handle of its job."""
    lab.notebook(notebook, [LOAD, SETUP, TRAIN.format(name=name, epochs=epochs), after])
    lab.page.evaluate(WATCH)
    for index in (0, 1):
        lab.run(index)
        lab.ran(index)
    lab.run(2)
    card = lab.page.wait_for_selector(f'[aria-label^="Job {name}-"]')
    assert card is not None
    return (card.get_attribute("aria-label") or "").removeprefix("Job ")


def by_you(site: Site, job: str) -> list[Resize]:
    """Return the resizes that the user asked for. A job that starts while another one ends may grow by itself, too."""
    return [one for one in site.job(job).view.resizes if one.by == "you"]


def hurries(site: Site, job: str) -> None:
    """All has been seen that happens in mid-run."""
    (site.job(job).directory / "output" / "hurry").touch()


def log_lines(lab: Lab, job: str) -> list[str]:
    """Return the lines of the card's unfolded log, without clock and learner."""
    lab.page.evaluate(
        """job => { for (const d of document.querySelectorAll(`[aria-label="Job ${job}"] details`))
            if (/^Log/.test(d.querySelector('summary').textContent)) d.open = true; }""",
        job,
    )
    text = str(lab.card(job).get_by_role("log").inner_text())
    return re.findall(r"epoch \d+ rank \d+", text)


def epochs_of_rank_0(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.endswith("rank 0")]


def last_loss(lab: Lab, job: str) -> str:
    found = lab.card(job).get_by_role("img", name=re.compile("^Loss", re.I)).first.get_attribute("aria-label")
    return found or ""


def test_card_of_a_cell_lives_from_queued_to_completed(lab: Open, site: Site) -> None:
    page = lab()
    job = started(page, "alive", "alive.ipynb", epochs=25, after="print(len(history['loss']))")
    page.is_at(job, "PROCESSING")
    page.card(job).get_by_role("img", name=re.compile("^Loss", re.I)).first.wait_for()
    first = last_loss(page, job)
    until(lambda: last_loss(page, job) != first, "the curve grows")
    page.is_at(job, "COMPLETED")

    seen = page.page.evaluate("window.dlaasSeen")
    assert seen[-1] == "completed"
    assert [s for s in seen if s in ("deploying", "processing", "completed")] == [
        "deploying",
        "processing",
        "completed",
    ]
    until(lambda: epochs_of_rank_0(log_lines(page, job)) == list(range(25)), "every line is shown once")
    page.run(3)
    page.cell(3).locator(".jp-OutputArea pre", has_text="25").wait_for()


def test_minus_and_plus_work_while_another_cell_blocks_the_kernel(lab: Open, site: Site) -> None:
    page = lab()
    job = started(page, "presses", "presses.ipynb", epochs=120, after=BLOCK.format(seconds=600))
    page.is_at(job, "PROCESSING")
    page.run(3)
    page.page.wait_for_selector("#jp-main-statusbar :text('| Busy')")

    page.card(job).get_by_role("button", name=f"Remove a CPU slot from {job}").click()
    until(lambda: len(by_you(site, job)) == 1, "one learner trains")
    page.card(job).get_by_role("button", name=f"Add a CPU slot to {job}").click()
    until(lambda: len(by_you(site, job)) == 2, "two learners train")

    page.page.wait_for_selector("#jp-main-statusbar :text('| Busy')")  # the kernel was blocked all the time
    first, second = by_you(site, job)
    assert [(one.before, one.after) for one in (first, second)] == [(2, 1), (1, 2)]
    assert 0 < first.step <= second.step
    hurries(site, job)
    site.job(job).wait(120)
    steps = [m["step"] for m in site.job(job).metrics() if "loss" in m]
    assert steps == list(range(10, 1201, 10)), "training continued at the right step"


def test_card_continues_after_both_servers_were_killed(lab: Open, site: Site, server: Server) -> None:
    page = lab()
    job = started(page, "killed", "killed.ipynb", epochs=200)
    page.is_at(job, "PROCESSING")
    until(lambda: len(log_lines(page, job)) > 4, "lines come")
    learners, port = site.learners(job), server.port

    server.kill()
    kill(site.engine_pid())
    again = site.serve(EXPOSED, port=port)

    assert site.learners(job) == learners
    first = len(log_lines(page, job))
    until(lambda: len(log_lines(page, job)) > first, "the card is live again")
    hurries(site, job)
    page.is_at(job, "COMPLETED")
    until(lambda: epochs_of_rank_0(log_lines(page, job)) == list(range(200)), "every line is shown once")
    assert site.job(job).view.restarts == 0
    server.process = again.process
    page.page.goto("about:blank")  # the next test loads a page that knows nothing of this


@pytest.mark.parametrize("record", each_nth(["without a token", "with a token"], 2))
def test_job_is_shared_by_magic_browser_command_line_and_python(
    lab: Open, site: Site, server: Server, record: str
) -> None:
    if record == "without a token":
        server.forget_token()
    page = lab()
    name = "tour" if record == "with a token" else "hub"
    job = started(page, name, f"{name}.ipynb", epochs=120)
    page.is_at(job, "PROCESSING")

    page.card(job).get_by_role("button", name=f"Remove a CPU slot from {job}").click()
    until(lambda: len(by_you(site, job)) == 1, "one learner trains")
    site.terminal("jupyter", "dlaas", "halt", name)
    page.is_at(job, "HALTED")
    site.terminal(sys.executable, "-c", f"import jupyter_dlaas as dlaas; dlaas.job({name!r}).resume()")
    page.is_at(job, "PROCESSING")
    hurries(site, job)
    page.is_at(job, "COMPLETED")

    epochs = [m["step"] // 10 for m in site.job(job).metrics() if "loss" in m]
    assert epochs == list(range(1, 121)), "each epoch counts once"


def test_reloaded_page_is_live_without_missing_or_doubled_lines(lab: Open, site: Site) -> None:
    page = lab()
    job = started(page, "reload", "reload.ipynb", epochs=150)
    page.is_at(job, "PROCESSING")
    until(lambda: len(log_lines(page, job)) > 4, "lines come")
    page.save()
    until(lambda: job in (site.work / "reload.ipynb").read_text(), "the notebook is saved with its card")

    page.notebook("reload.ipynb")
    page.is_at(job, "PROCESSING")
    first = len(log_lines(page, job))
    until(lambda: len(log_lines(page, job)) > first, "it is live again")
    hurries(site, job)
    page.is_at(job, "COMPLETED")

    until(lambda: epochs_of_rank_0(log_lines(page, job)) == list(range(150)), "every line is shown once")
    whole = site.job(job).logs(member=0)
    assert epochs_of_rank_0(re.findall(r"epoch \d+ rank \d+", whole)) == list(range(150))


@exhaustive
def test_checkpoint_is_requested_in_the_menu_of_the_card(lab: Open, site: Site) -> None:
    page = lab()
    job = started(page, "kept", "kept.ipynb", epochs=500)
    page.is_at(job, "PROCESSING")

    page.card(job).get_by_role("button", name=f"More actions for {job}").click()
    page.page.get_by_role("menuitem", name="Write a Checkpoint").click()

    page.page.get_by_text(f"{job} writes a checkpoint at its next step").wait_for()
    until(lambda: "Requested checkpoint written" in site.job(job).events(), "it is kept")
    site.job(job).halt()
    page.is_at(job, "HALTED")
    page.card(job).get_by_role("button", name=f"More actions for {job}").click()
    expect(page.page.get_by_role("menuitem", name="Write a Checkpoint")).to_be_disabled()


def test_the_card_outlives_its_kernel(lab: Open, site: Site) -> None:
    page = lab()
    job = started(page, "kernel", "kernel.ipynb", epochs=60)
    page.is_at(job, "PROCESSING")

    page.page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.page.get_by_role("menuitem", name="Shut Down Kernel", exact=True).click()
    page.page.wait_for_selector("#jp-main-statusbar :text('No Kernel')")

    first = len(log_lines(page, job))
    until(lambda: len(log_lines(page, job)) > first, "the card lives without a kernel")
    hurries(site, job)
    page.is_at(job, "COMPLETED")


@exhaustive
def test_a_saved_notebook_is_readable_without_the_extension(lab: Open, site: Site, browser: Browser) -> None:
    page = lab()
    job = started(page, "saved", "saved.ipynb", epochs=5)
    page.is_at(job, "COMPLETED")

    def saved() -> str:
        page.save()
        text = (site.work / "saved.ipynb").read_text()
        return text if text.rstrip().endswith("}") else ""  # just being written

    def html(text: str) -> str:
        found = [o["data"].get("text/html", "") for o in json.loads(text)["cells"][2]["outputs"] if "data" in o]
        return "".join(found[0]) if found else ""

    whole = until(lambda: (text := saved()) and "completed" in html(text) and text, "the saved snapshot shows the end")
    for word in ("script", "style", "class=", "href", "src="):
        assert word not in html(whole)
    assert len(html(whole).encode()) <= 8000

    plain = site.folder / "plain"
    bare = Site(plain)
    try:
        settings = bare.folder / "config" / "labconfig" / "page_config.json"
        disabled = json.loads(settings.read_text())["disabledExtensions"] | {"jupyter-dlaas": True}
        settings.write_text(json.dumps({"disabledExtensions": disabled}))
        (bare.work / "saved.ipynb").write_text(whole)
        without = Lab.open(browser, bare.serve())
        without.read("saved.ipynb")
        shown = without.cell(2).locator(".jp-OutputArea").inner_text()
        assert without.page.get_by_role("region", name=f"Job {job}").count() == 0
        without.page.close()
    finally:
        bare.close()
    assert job in shown
    assert "completed" in shown
    assert "epoch 4 rank 0" in shown or "Last" in shown


NASTY = (
    "<img src=x onerror=window.dlaasPwned=1>",
    "<script>window.dlaasPwned=1</script>",
    "\x1b]8;;javascript:window.dlaasPwned=1\x07click\x1b]8;;\x07",
    "</pre></details><svg onload=window.dlaasPwned=1>",
    "[x](javascript:window.dlaasPwned=1)",
)


@exhaustive
def test_output_of_a_job_is_never_markup(lab: Open, site: Site) -> None:
    page = lab()
    cell = f"%%train nasty\nfor line in {NASTY!r}:\n    print(line, flush=True)\nraise ValueError({NASTY[0]!r})"
    page.notebook("nasty.ipynb", [LOAD, cell])
    page.run(0)
    page.ran(0)
    page.run(1)
    card = page.page.wait_for_selector('[aria-label^="Job nasty-"]', state="attached")
    job = ((card and card.get_attribute("aria-label")) or "").removeprefix("Job ")
    page.is_at(job, "FAILED")
    page.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true;")
    page.page.get_by_text("onerror=window.dlaasPwned").first.wait_for()
    page.save()
    until(lambda: job in (site.work / "nasty.ipynb").read_text(), "the notebook is saved with its card")
    page.notebook("nasty.ipynb")
    page.is_at(job, "FAILED")

    assert page.page.evaluate("window.dlaasPwned === undefined")
    assert page.page.locator(".jp-OutputArea img[src=x], .jp-OutputArea svg[onload]").count() == 0


def test_the_panel_shows_pool_and_jobs_and_scales_from_there(lab: Open, site: Site, tmp_path: Path) -> None:
    page = lab()
    job = started(page, "panel", "panel.ipynb", epochs=100)
    page.is_at(job, "PROCESSING")
    waiting = site.submit("print('hi')\n", name="behind", gpus="2")
    panel = page.panel()
    panel.get_by_text("2 of 2 CPU slots in use").wait_for()

    panel.get_by_text(waiting.id).first.wait_for()
    panel.get_by_role("button", name=f"Remove a CPU slot from {job}").click()
    until(lambda: site.job(job).view.size.wish == 1, "the wish is one")
    site.job(job).cancel()
    waiting.wait(60)
    panel.get_by_text("0 of 2 CPU slots in use").wait_for()
