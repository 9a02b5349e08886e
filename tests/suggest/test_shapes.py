"""Shapes of loops in notebooks, and the rewrite that `suggest` proposes for each."""

from __future__ import annotations

import pytest

from jupyter_dlaas.analysis.model import ExecutedCell, TrainingCell
from jupyter_dlaas.suggest.rewrite import Suggestion, suggest
from tests.suggest.running import suggestion_for

MODEL = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
ds = TensorDataset(torch.randn(8, 2), torch.randn(8, 1))
loader = DataLoader(ds, batch_size=4)
net = nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""
STEP = "        loss = net(x).mean()\n        loss.backward()\n        opt.step()\n"
LOOP = f"for epoch in range(3):\n    for x, y in loader:\n{STEP}"


def added(found: Suggestion) -> list[str]:
    assert found.cells, found.why
    return [line for cell in found.cells for line in cell.added]


def loop(outer: str, inner: str = "for x, y in loader:", setup: str = "") -> list[str]:
    return added(suggestion_for(MODEL + setup, f"{outer}\n    {inner}\n{STEP}"))


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("for e in range(n):", "for e in run.epochs(n):"),
        ("for e in range(0, n):", "for e in run.epochs(n):"),
        ("for e in range(1, n + 1):", "for e in run.epochs(n):"),
        ("for e in range(1, 1 + n):", "for e in run.epochs(n):"),
        ("for e in range(first, last):", "for e in run.epochs(last - first):"),
        ("for e in range(a + 1, n):", "for e in run.epochs(n - (a + 1)):"),
        ("for e in range(5, 25):", "for e in run.epochs(20):"),
        ("for e in tqdm(range(n)):", "for e in tqdm(run.epochs(n), total=n):"),
        ('for e in tqdm(range(n), desc="a"):', 'for e in tqdm(run.epochs(n), desc="a", total=n):'),
        ("for e in tqdm(range(n), total=n):", "for e in tqdm(run.epochs(n), total=n):"),
        ("for e in tqdm.trange(n, leave=False):", "for e in tqdm.tqdm(run.epochs(n), total=n, leave=False):"),
        ("for e in trange(n):", "for e in run.epochs(n):"),
        ("for i, e in enumerate(range(n)):", "for i, e in enumerate(run.epochs(n)):"),
        ("for e in range(int(args.epochs)):", "for e in run.epochs(int(args.epochs)):"),
        ("for e in epochs:", "for e in run.epochs(len(epochs)):"),
    ],
)
def test_epochs_in_any_spelling(written: str, wanted: str) -> None:
    assert wanted in loop(written, setup="epochs = range(10)\n")


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("for x, y in loader:", "for x, y in run.batches(loader):"),
        ("for i, (x, y) in enumerate(loader):", "for i, (x, y) in enumerate(run.batches(loader)):"),
        ("for i, d in enumerate(loader, 0):", "for i, d in enumerate(run.batches(loader), 0):"),
        ("for x, y in tqdm(loader, leave=False):", "for x, y in tqdm(run.batches(loader), leave=False):"),
        (
            "for i, (x, y) in tqdm(enumerate(loader), total=len(loader)):",
            "for i, (x, y) in tqdm(enumerate(run.batches(loader)), total=len(loader)):",
        ),
        ("for b in loaders['train']:", "for b in run.batches(loaders['train']):"),
        ("for b in DataLoader(ds, 4):", "for b in run.batches(DataLoader(ds, 4)):"),
        ("for b in data.train_dataloader():", "for b in run.batches(data.train_dataloader()):"),
    ],
)
def test_batches_in_any_spelling(written: str, wanted: str) -> None:
    assert f"    {wanted}" in loop("for epoch in range(3):", written)


def test_epochs_with_an_offset_keep_their_numbers() -> None:
    text = f"for e in range(1, 11):\n    for x, y in loader:\n{STEP}    print(e)\n"

    assert "    e += 1" in added(suggestion_for(MODEL, text))
    assert "    e += 1" not in loop("for e in range(1, 11):")


def test_names_are_those_of_the_enclosing_function() -> None:
    function = (
        "def fit(network, data, optimiser):\n"
        "    for e in range(3):\n"
        "        for x, y in data:\n"
        "            network(x).mean().backward()\n"
        "            optimiser.step()\n"
    )

    (cell,) = suggestion_for(MODEL, function, "fit(net, loader, opt)").cells
    assert cell.label == "cell [2]"
    assert "    network, optimiser = run.prepare(network, optimiser)" in cell.added


def test_function_uses_outer_objects() -> None:
    function = "def fit():\n" + "".join(f"    {line}\n" for line in LOOP.splitlines())

    assert "    run.prepare(net, opt)" in added(suggestion_for(MODEL, function, "fit()"))


def test_the_newest_definition_of_a_function_counts() -> None:
    old = "def fit(n):\n    pass"
    new = "def fit(n):\n" + "".join(f"    {line}\n" for line in LOOP.splitlines())

    assert [cell.label for cell in suggestion_for(MODEL, old, new, "fit(3)").cells] == ["cell [3]"]


def test_a_gan_hands_over_both_models_with_both_optimisers() -> None:
    models = (
        "G, D = nn.Linear(2, 2), nn.Linear(2, 1)\n"
        "opt_g = torch.optim.Adam(G.parameters())\nopt_d = torch.optim.Adam(D.parameters())\n"
    )
    text = (
        "for epoch in range(3):\n"
        "    for real, _ in loader:\n"
        "        d_loss = D(G(real).detach()).mean() - D(real).mean()\n"
        "        d_loss.backward()\n"
        "        opt_d.step()\n"
        "        g_loss = -D(G(real)).mean()\n"
        "        g_loss.backward()\n"
        "        opt_g.step()\n"
    )

    lines = added(suggestion_for(MODEL + models, text))
    assert "D, G, opt_d, opt_g = run.prepare(D, G, opt_d, opt_g)" in lines
    assert "    run.log(d_loss=d_loss, g_loss=g_loss)" in lines


def test_scheduler_and_scaler_go_along() -> None:
    setup = "sched = torch.optim.lr_scheduler.StepLR(opt, 1)\nscaler = torch.amp.GradScaler()\n"
    text = (
        "for e in range(3):\n    for i, (x, y) in enumerate(loader):\n        loss = net(x).mean() / 2\n"
        "        scaler.scale(loss).backward()\n        if (i + 1) % 2 == 0:\n            scaler.step(opt)\n"
        "            scaler.update()\n            opt.zero_grad()\n    sched.step()\n"
    )

    assert "net, opt, sched, scaler = run.prepare(net, opt, scheduler=sched, scaler=scaler)" in added(
        suggestion_for(MODEL + setup, text)
    )


def test_two_schedulers_are_objects_like_others() -> None:
    setup = "warmup = torch.optim.lr_scheduler.LinearLR(opt)\nsched = torch.optim.lr_scheduler.StepLR(opt, 1)\n"
    text = LOOP + "    warmup.step()\n    sched.step()\n"

    assert "net, opt, warmup, sched = run.prepare(net, opt, warmup, sched)" in added(
        suggestion_for(MODEL + setup, text)
    )


def test_an_own_name_run_is_left_alone() -> None:
    lines = added(suggestion_for(MODEL + "run = 'first'\n", LOOP))

    assert "job_run = dlaas.run()" in lines
    assert "for epoch in job_run.epochs(3):" in lines


def test_only_one_learner_saves() -> None:
    text = LOOP + "    torch.save(net, 'a.pt')\n    if epoch: torch.save(net, 'b.pt')\ntorch.save(\n    net, 'c.pt')\n"

    lines = added(suggestion_for(MODEL, text))
    assert "    if run.is_main: torch.save(net, 'a.pt')" in lines
    assert "    if epoch: run.is_main and torch.save(net, 'b.pt')" in lines
    assert "if run.is_main: torch.save(" in lines


def test_a_single_pass_needs_no_epochs() -> None:
    text = "for x, y in loader:\n    loss = net(x).mean()\n    loss.backward()\n    opt.step()\n"

    assert added(suggestion_for(MODEL, text)) == [
        "run = dlaas.run()",
        "net, opt = run.prepare(net, opt)",
        "for x, y in run.batches(loader):",
        "run.log(loss=loss)",
    ]


def test_steps_without_batches_resume_with_a_note() -> None:
    text = "for i in range(100):\n    loss = net(ds.tensors[0]).mean()\n    loss.backward()\n    opt.step()\n"

    found = suggestion_for(MODEL, text)
    assert "for i in run.epochs(100):" in added(found)
    assert found.hints[0].startswith("There are no batches to divide: the job resumes at the epoch")


def test_the_page_s_line_numbers_count_the_magic_above() -> None:
    before = [ExecutedCell(count=1, source=MODEL)]

    found = suggest(before, TrainingCell(count=2, source="a = 1\n" + LOOP, first_line=3))
    assert found.diff(0).split("\n")[2] == "@@ -4,2 +4,4 @@"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (f"while True:\n    for x, y in loader:\n{STEP}", "a `while` loop has no known length"),
        (LOOP + LOOP, "this cell trains twice, at cell [2], line 1 and at cell [2], line 6"),
        (
            "for lr in [1, 2]:\n    opt = torch.optim.SGD(net.parameters(), lr=lr)\n    for x, y in loader:\n" + STEP,
            "creates a new `opt` in each iteration: these are several trainings",
        ),
        ("net(ds[0][0]).mean().backward(); opt.step()", "runs one backward pass outside of any loop"),
        (f"for e in forever():\n    for x, y in loader:\n{STEP}", "the length of `forever()` is unknown"),
        (f"for e in range(0, 9, 2):\n    for x, y in loader:\n{STEP}", "`range(0, 9, 2)` does not count epochs"),
        ("for x, y in zip(loader, loader):\n" + STEP.replace("        ", "    "), "several loaders at once"),
        ("for e in range(3):\n    loss = net(ds[0][0]).mean()\n    loss.backward()\n", "no optimiser step was found"),
        ("x = 1", "no PyTorch loop with `loss.backward()` in this cell"),
        ("for e in range(3:\n    pass", "cell [2] is not valid Python"),
        ("from helpers import train_all\ntrain_all(net)", "no PyTorch loop found in `train_all(…)`"),
        (f"import accelerate\na = accelerate.Accelerator()\n{LOOP}", "uses Accelerate, which divides the work"),
        (f"ddp = nn.parallel.DistributedDataParallel(net)\n{LOOP}", "trains unchanged with a fixed number of learners"),
        ("run = dlaas.run()\nfor e in run.epochs(3):\n    net(e).backward()", "it already uses dlaas.run()"),
    ],
)
def test_impossible_suggestion_is_explained(cell: str, said: str) -> None:
    found = suggestion_for(MODEL, cell)

    assert found.cells == ()
    assert said in found.why
    assert "\n" not in found.why


@pytest.mark.parametrize(
    ("above", "cell", "name"),
    [
        ("from tensorflow import keras\nmodel = keras.Sequential()", "model.fit(x, y, epochs=3)", "Keras"),
        ("import lightning as L\ntrainer = L.Trainer()", "trainer.fit(model)", "Lightning"),
        ("from transformers import Trainer\nt = Trainer()", "t.train()", "the Hugging Face Trainer"),
    ],
)
def test_frameworks_that_keep_their_place_need_no_changed_line(above: str, cell: str, name: str) -> None:
    found = suggestion_for(above, cell)

    assert found.why == f"{name} keeps its own position: the job can halt at a step and resume without any changes."


@pytest.mark.parametrize(
    ("setup", "inner"),
    [
        ("batches = [(x, y) for x, y in loader]\n", "for x, y in batches:"),
        ("def minibatches():\n    yield ds[:4]\n", "for x, y in minibatches():"),
        ("", "for x, y in zip(loader, loader):"),
        ("", "for x, y in ds.tensors[0].split(2):"),
        ("batches = data.BucketIterator(ds, batch_size=4)\n", "for x, y in batches:"),
        ("train_iter, test_iter = BucketIterator.splits((ds, ds), batch_size=4)\n", "for x, y in train_iter:"),
        ("batches = map(tuple, loader)\n", "for x, y in batches:"),
        ("class Wrap:\n    def __iter__(self):\n        yield ds[:4]\nbatches = Wrap()\n", "for x, y in batches:"),
    ],
)
def test_unsplittable_data_stays_with_a_note(setup: str, inner: str) -> None:
    found = suggestion_for(MODEL + setup, f"for epoch in range(3):\n    {inner}\n{STEP}")

    assert "for epoch in run.epochs(3):" in added(found)
    assert not any("run.batches" in line for line in added(found))
    assert "each learner would process all of it" in found.hints[0]


def test_an_optimiser_over_loose_tensors_is_not_shared_out() -> None:
    text = "w = torch.zeros(2, requires_grad=True)\nsgd = torch.optim.SGD([w], 0.1)\n"
    cell = LOOP.replace("net(x)", "(x @ w)").replace("opt.step", "sgd.step")

    assert suggestion_for(MODEL, text, cell).why.startswith("the module that `sgd` trains was not found.")


def test_an_optimiser_of_one_s_own_must_have_a_state() -> None:
    own = (
        "class Noam:\n    def __init__(self, optimizer):\n        self.optimizer = optimizer\n"
        "    def step(self):\n        self.optimizer.step()\nnoam = Noam(opt)\n"
    )

    found = suggestion_for(MODEL, own, LOOP.replace("opt.step", "noam.step"))
    assert "`noam` is a Noam, which has no `state_dict`" in found.why


def test_sums_over_samples_and_early_breaks_are_noted() -> None:
    text = LOOP + "        total += loss.item() * x.size(0)\n        if loss < 1:\n            break\n"

    hints = suggestion_for(MODEL, text).hints
    assert any("all learners must `break` at the same step" in hint for hint in hints)
    assert any("divide by the number of samples it processed" in hint for hint in hints)


@pytest.mark.parametrize(
    "bar", ["    bar = tqdm(loader)\n    for x, y in bar:\n", "    with tqdm(loader) as bar:\n      for x, y in bar:\n"]
)
def test_named_bar_wraps_the_shared_batches(bar: str) -> None:
    lines = added(suggestion_for(MODEL, f"for epoch in range(3):\n{bar}{STEP}"))

    assert any("tqdm(run.batches(loader))" in line for line in lines)
    assert not any("run.batches(bar)" in line for line in lines)


def test_bar_created_once_for_all_epochs_is_noted() -> None:
    found = suggestion_for(MODEL, f"bar = tqdm(loader)\nfor epoch in range(3):\n    for x, y in bar:\n{STEP}")

    assert "is created once, outside the loop" in found.hints[0]
    assert not any("run.batches" in line for line in added(found))


def test_lists_are_not_logged() -> None:
    function = (
        "def one(n):\n    losses = []\n    for x, y in loader:\n" + STEP + "        losses.append(loss.item())\n"
        "    return losses, sum(losses)\n"
    )
    cell = "for epoch in range(3):\n    all_loss, mean_loss = one(epoch)\n    val_losses = [1, 2]\n"

    assert "    run.log(mean_loss=mean_loss)" in added(suggestion_for(MODEL, function, cell))


def test_parameters_by_other_names_are_a_model_s_too() -> None:
    more = "ngd = torch.optim.SGD(net.natural_parameters(), lr=1)\n"

    assert "net, ngd = run.prepare(net, ngd)" in added(suggestion_for(MODEL + more, LOOP.replace("opt.", "ngd.")))
