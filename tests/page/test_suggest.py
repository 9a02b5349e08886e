"""Make it elastic on the card, and what `check` says in the dialog: in a real JupyterLab, in a real browser."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.page.browser import Lab
from tests.selection import exhaustive
from tests.whole.site import Site, until

Open = Callable[..., Lab]
LOAD = "%load_ext jupyter_dlaas"
SETUP = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
train_set = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
loader = DataLoader(train_set, batch_size=16, shuffle=True)
net = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)"""
FUNCTION = """\
def train_one_epoch(model, data, optimizer):
    model.train()
    for x, y in data:  # one pass
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()"""
TRAIN = """\
%%train plain --gpus 1
for epoch in range(3):
    train_loss = train_one_epoch(net, loader, opt)
    print(f"epoch {epoch}: loss {train_loss:.3f}")"""


@exhaustive
def test_elastic_suggestion_of_a_card_opens_by_keyboard(lab: Open, site: Site) -> None:
    page = lab()
    page.notebook("plain.ipynb", [LOAD, SETUP, FUNCTION, TRAIN])
    for index in range(3):
        page.run(index)
        page.ran(index)
    page.run(3)
    card = page.page.get_by_role("region", name="Job plain-1").first

    button = card.get_by_role("button", name="Make it elastic")
    expect(button).to_have_attribute("aria-expanded", "false")
    button.focus()
    page.page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    function = card.get_by_role("group", name="What changes in cell [3]")
    training = card.get_by_role("group", name="What changes in cell [4]")
    assert function.locator("ins").all_text_contents() == ["+     for x, y in run.batches(data):  # one pass"]
    assert training.locator("ins").all_text_contents() == [
        "+ run = dlaas.run()",
        "+ net, opt = run.prepare(net, opt)",
        "+ for epoch in run.epochs(3):",
        "+     run.log(train_loss=train_loss)",
    ]

    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    card.get_by_role("button", name="Copy the new cell [4]").click()
    copied = page.page.evaluate("navigator.clipboard.readText()")
    assert copied == (
        "%%train plain --gpus 1\n"
        "run = dlaas.run()\n"
        "net, opt = run.prepare(net, opt)\n"
        "for epoch in run.epochs(3):\n"
        "    train_loss = train_one_epoch(net, loader, opt)\n"
        "    run.log(train_loss=train_loss)\n"
        '    print(f"epoch {epoch}: loss {train_loss:.3f}")'
    )


def test_suggestion_is_shown_below_the_cell_without_a_job(lab: Open, site: Site) -> None:
    page = lab()
    jobs = len(site.client.jobs())
    page.notebook("asked.ipynb", [LOAD, SETUP, FUNCTION, TRAIN.replace("--gpus 1", "--suggest")])
    for index in range(4):
        page.run(index)
        page.ran(index)

    output = page.cell(3).locator(".jp-OutputArea-output")
    expect(output.locator("ins").first).to_contain_text("for x, y in run.batches(data):  # one pass")
    assert len(site.client.jobs()) == jobs


def test_dialog_shows_the_findings_of_check_per_cell(lab: Open, site: Site) -> None:
    page = lab()
    page.notebook("picked.ipynb", [SETUP, FUNCTION, TRAIN.partition("\n")[2]])
    page.page.get_by_role("button", name="Train this notebook").click()
    dialog = page.page.get_by_role("dialog")

    row = dialog.get_by_role("listitem").nth(2)
    expect(row).to_contain_text("Trains: calls train_one_epoch, which trains (cell [2]).")
    expect(row).to_contain_text("As a job of its own (%%train picked), it needs 7 statements")
    expect(row).not_to_contain_text("--gpus")  # learners of this loop would not share the work
    expect(dialog.get_by_role("alert")).to_have_count(0)

    dialog.get_by_role("checkbox", name="Include cell 2").click()
    alert = dialog.get_by_role("alert")
    expect(alert).to_contain_text("reads train_one_epoch, which no cell above defines")
    expect(dialog).to_contain_text("1 thing to fix first.")
    dialog.get_by_role("button", name="Cancel").click()
    assert site.client.jobs() == [] or all(view.name != "picked" for view in site.client.jobs())


def test_ticked_box_trains_the_notebook_as_a_spot_job(lab: Open, site: Site) -> None:
    page = lab()
    page.notebook("lent.ipynb", ["print('hi')"])
    page.page.get_by_role("button", name="Train this notebook").click()
    dialog = page.page.get_by_role("dialog")
    box = dialog.get_by_role("checkbox", name="Spot: cheaper, may be reclaimed")
    expect(box).not_to_be_checked()

    dialog.get_by_text("cheaper, may be reclaimed").click()
    expect(box).to_be_checked()
    expect(dialog).to_contain_text("When others need them, it writes a checkpoint within 30 s and continues later.")
    dialog.get_by_role("button", name="Train", exact=True).click()
    until(lambda: [view.spot for view in site.client.jobs() if view.name == "lent"] == [True], "it is a spot job")
