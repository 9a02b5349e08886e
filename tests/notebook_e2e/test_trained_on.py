"""After `-o model`, training continues: in the next job, in the notebook's loop, through every name of the model."""

from __future__ import annotations

import pytest

from tests.notebook_e2e.rooms import Kernel, Pool, displays_of

LOOP = (
    "for epoch in range(5):\n    loss = (model(X) - Y).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()\n"
    "    losses.append(loss.item())"
)


@pytest.fixture(scope="module")
def torched(kernel: Kernel) -> Kernel:
    kernel.run(
        "import copy, torch\nfrom torch import nn\ntorch.manual_seed(0)\nX = torch.randn(64, 4)\n"
        "Y = X.sum(1, keepdim=True)\nlosses = []\n"
        "def error():\n    return (model(X) - Y).pow(2).mean().item()"
    )
    return kernel


def fresh(kernel: Kernel, optimiser: str = "torch.optim.SGD(model.parameters(), lr=0.05)") -> None:
    kernel.run("model = nn.Linear(4, 1)")
    kernel.run(f"opt = {optimiser}\nlosses = []")


@pytest.mark.parametrize("names", ["model", "model,opt"])
def test_rerun_cell_and_notebook_continue_the_training(torched: Kernel, pool: Pool, names: str) -> None:
    fresh(torched, "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)")
    torched.run("first_error, first_weight, seen = error(), model.weight, losses")
    cell = f"%%train twice -o {names},losses --wait\n{LOOP}"

    errors = [torched.value("first_error")]
    for _ in range(3):
        torched.run(cell)
        errors.append(torched.value("error()"))
    torched.run(LOOP)
    errors.append(torched.value("error()"))

    assert errors == sorted(errors, reverse=True)
    assert len(set(errors)) == 5
    assert torched.value("(seen is losses, len(seen))") == (True, 20)
    assert torched.value("(model.weight is first_weight, opt.param_groups[0]['params'][0] is model.weight)") == (
        True,
        True,
    )


def test_all_references_point_to_the_trained_model(torched: Kernel, pool: Pool) -> None:
    torched.run(
        "class Trainer:\n    steps = 0\n    def __init__(self, model, opt):\n"
        "        self.model, self.opt, self.seen, self.losses = model, opt, 0, []\n"
        "    def fit(self):\n        loss = (self.model(X) - Y).pow(2).mean(); self.opt.zero_grad(); loss.backward()\n"
        "        self.opt.step(); self.seen += 1; self.losses.append(loss.item()); Trainer.steps += 1"
    )
    fresh(torched, "torch.optim.Adam(model.parameters(), lr=0.1)")
    torched.run(
        "net = model\nplan = torch.optim.lr_scheduler.StepLR(opt, 1)\ntrainer = Trainer(model, opt)\n"
        "losses = trainer.losses\n"
        "average = copy.deepcopy(model)\nmodels = [model, average]"
    )

    torched.run("%%train held -o model,trainer --wait\ntrainer.fit()\ntrainer.fit()")

    assert torched.value("(net is model, trainer.model is model, models[0] is model, plan.optimizer is opt)") == (
        (True,) * 4
    )
    assert torched.value("(trainer.seen, opt.state[model.weight]['step'].item(), trainer.opt is opt)") == (2, 2.0, True)
    assert torched.value("(losses is trainer.losses, len(losses), Trainer.steps)") == (True, 2, 2)
    assert torched.value("torch.equal(average.weight, model.weight)") is False
    before = torched.value("error()")
    torched.run("%%train held -o model --wait\nopt.zero_grad(); (net(X) - Y).pow(2).mean().backward(); opt.step()")
    assert "into={" in torched.run("%dlaas source held").stdout
    assert torched.value("error()") < before


def test_next_job_uses_parts_of_a_result_that_just_arrived(torched: Kernel, pool: Pool) -> None:
    fresh(torched)
    torched.run(
        "class Fitted:\n    def __init__(self, model):\n        self.model, self.losses = model, []\n"
        "    def fit(self, opt):\n        loss = (self.model(X) - Y).pow(2).mean(); opt.zero_grad(); loss.backward()\n"
        "        opt.step(); self.losses.append(loss.item())\n"
        "fitted = Fitted(model)\nseen_losses = fitted.losses"
    )
    torched.run("%%train part -o fitted\nfitted.fit(opt)")
    torched.run(
        "import time\nfrom jupyter_dlaas.client.http import Client\n"
        "while Client().job('part').state != 'COMPLETED':\n    time.sleep(0.05)\n"
        "get_ipython().run_cell_magic('train', 'rest -o found --wait', "
        "'found = model.bias.item(), model.bias.grad.item(), list(seen_losses)')"
    )

    assert torched.value("found == (model.bias.item(), model.bias.grad.item(), fitted.losses)")
    assert torched.value("(len(seen_losses), found[0] != 0)") == (1, True)
    assert 'into={"fitted": fitted}' in torched.run("%dlaas source rest").stdout


def test_parameters_that_are_views_of_a_vector_train_on(torched: Kernel, pool: Pool) -> None:
    torched.run("import numpy as np\ndata, goal = X.numpy(), Y.numpy()")
    torched.run(
        "theta = np.zeros(5)\nweight, bias = theta[:4].reshape(4, 1), theta[4:]\nparts = {'weight': weight}\n"
        "def miss():\n    return data @ parts['weight'] + bias - goal"
    )
    cell = (
        "for _ in range(5):\n    slope = np.append(data.T @ miss(), miss().sum()) / 64\n    theta -= 0.2 * slope\n"
        "    seen.append((miss() ** 2).mean())"
    )
    torched.run(f"seen = []\nkept = theta.copy()\n{cell}\n{cell}\nexpected = seen\ntheta[:] = kept\nseen = []")

    for _ in range(2):
        torched.run(f"%%train vector -o theta,weight,bias,parts,seen --wait\n{cell}")

    assert torched.value("(seen == expected, np.shares_memory(parts['weight'], theta))") == (True, True)
    torched.run(cell)
    assert torched.value("bool(seen[-1] < expected[-1])")


def test_scalers_generators_and_metrics_are_restored_in_place(torched: Kernel, pool: Pool) -> None:
    torched.run(
        "class Meter:\n    def __init__(self):\n        self.seen = []\n"
        "scaler = torch.amp.GradScaler('cpu', 8.0, growth_interval=3)\n"
        "chance, meter = torch.Generator().manual_seed(1), Meter()\nheld = [scaler, chance, meter]\n"
        "plain = torch.Generator().manual_seed(1)\nexpected = [torch.rand(1, generator=plain).item() for _ in range(4)]"
    )
    cell = (
        "%%train kept -o scaler,chance,meter --wait\nfor _ in range(2):\n    w = torch.ones(1, requires_grad=True)\n"
        "    opt = torch.optim.SGD([w], lr=0.1)\n    scaler.scale(w.sum()).backward()\n"
        "    scaler.step(opt)\n    scaler.update()\n"
        "    held[2].seen.append(torch.rand(1, generator=held[1]).item())"
    )

    torched.run(cell)
    torched.run(cell)

    assert torched.value("[one is other for one, other in zip(held, [scaler, chance, meter])]") == [True, True, True]
    assert torched.value("meter.seen == expected")
    assert torched.value("(scaler.get_scale(), scaler.state_dict()['_growth_tracker'])") == (16.0, 1)


def test_changes_of_a_result_are_repeated_in_the_next_job(torched: Kernel, pool: Pool) -> None:
    torched.run("model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))")
    torched.run("%%train body -o model --wait\nmodel[0].weight.data.fill_(0.5)")
    torched.run("model[1] = nn.Linear(4, 2)")
    torched.run("%%train head -o shapes --wait\nshapes = [tuple(p.shape) for p in model.parameters()]")

    assert torched.value("shapes") == [(4, 4), (4,), (2, 4), (2,)]


def test_mismatched_model_is_rebound_and_references_are_reported(torched: Kernel, pool: Pool) -> None:
    fresh(torched)
    made = torched.value("len(In)") - 2
    torched.run("alias, model.losses = model, []\nlosses = model.losses")
    sent = torched.run("%%train wider -o model --wait\nmodel = (model, nn.Linear(4, 2))[1]")

    torched.listen(lambda: displays_of(torched, f"model: assigned from {sent.job['id']}."))
    (said,) = displays_of(torched, f"model: assigned from {sent.job['id']}.")
    assert said.splitlines()[1] == (
        "model is now a new object (its weights have different shapes or types); `alias`, `losses`, `opt` "
        "still refer to the old one. Run the cells that create them again."
    )
    refused = torched.run(f"%%train apart\n{LOOP}", fails=True)
    assert f"cell [{made}], line 1: `opt` would not refer to the `model` that {sent.job['id']}" in (refused.evalue)


def test_state_left_behind_is_reported_when_it_is_used(torched: Kernel, pool: Pool) -> None:
    fresh(torched, "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)")
    torched.run("class Pair:\n    def __init__(self, *parts):\n        self.parts = parts\npair = Pair(model, opt)")

    first = torched.run(f"%%train partly -o model --wait\n{LOOP}").job["id"]
    second = torched.run(f"%%train partly -o pair --wait\n{LOOP}").job
    third = torched.run(f"%%train partly --wait\n{LOOP}").job

    assert displays_of(
        torched, f"model: assigned from {first}.\nChanged in the job, but not returned with -o: losses, opt."
    )
    (note,) = [one["text"] for one in second["notes"] if one["code"] == "not_returned"]
    assert note.startswith(f"{first} (cell [")
    assert "changed `losses`, `opt` but did not return them" in note
    assert "-o model,losses,opt" in note
    (note,) = [one["text"] for one in third["notes"] if one["code"] == "not_returned"]
    assert "changed `losses` but" in note  # `pair` holds the optimiser, which came back with it
    torched.run("%%train failing\nlosses.append(1); raise ValueError", fails=True)
    torched.listen(lambda: pool.job("failing").state.is_final)
    fourth = torched.run("%%train looking\nprint(losses)").job
    assert [one["text"][:5] for one in fourth["notes"] if one["code"] == "not_returned"] == ["partl"]


def test_alias_keeps_its_model_if_the_cell_rebinds(torched: Kernel, pool: Pool) -> None:
    torched.run("model = nn.Linear(4, 1)\nbaseline, first = model, model.weight.detach().clone()")

    torched.run("%%train again -o model --wait\nmodel = nn.Linear(4, 1)\nmodel.weight.data.fill_(3.0)")

    assert torched.value("(torch.equal(baseline.weight, first), model is baseline, model.weight[0, 0].item())") == (
        True,
        False,
        3.0,
    )
    assert displays_of(torched, "(the training cell rebinds it); `baseline` still refers to the old one")


def test_model_of_an_edited_class_is_left_unchanged(torched: Kernel, pool: Pool) -> None:
    text = "class Net(nn.Linear):\n    def forward(self, x):\n        return super().forward(x) * {factor}"
    torched.run(text.format(factor=1))
    torched.run("edited = Net(4, 1)\nuntouched = edited.weight.detach().clone()")
    sent = torched.run("%%train edited -o edited\nimport time\ntime.sleep(1)\nedited.weight.data.fill_(7.0)")
    torched.run(text.format(factor=2))

    torched.listen(lambda: displays_of(torched, "edited: left unchanged: `Net` was edited after the submission."))
    assert torched.value("torch.equal(edited.weight, untouched)") is True
    torched.run(f"got = dlaas.result('{sent.job['id']}', 'edited')")
    assert torched.value("(got(torch.ones(1, 4)) - got.bias).item()") == 28.0
    assert torched.value("type(got) is Net") is False


DRAWS = "model = nn.Linear(4, 1)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)"
DRAWN = (
    "picked = torch.randint(0, 64, (8,))\n"
    "opt.zero_grad(); (model(X[picked]) - Y[picked]).pow(2).mean().backward(); opt.step()"
)


def test_random_streams_continue_after_the_results(torched: Kernel, pool: Pool) -> None:
    torched.run("torch.manual_seed(5)")
    torched.run(DRAWS)
    torched.run(DRAWN)
    torched.run(DRAWN)
    expected = torched.value("(picked.tolist(), torch.rand(1).item())")
    torched.run("torch.manual_seed(5)")
    torched.run(DRAWS)

    for _ in range(2):
        torched.run(f"%%train drawn -o model,opt,picked --wait\n{DRAWN}")

    assert torched.value("(picked.tolist(), torch.rand(1).item())") == expected


def test_random_numbers_drawn_meanwhile_are_kept(torched: Kernel, pool: Pool) -> None:
    torched.run("torch.manual_seed(5)")
    torched.run(DRAWS)
    torched.run("picked = None")
    torched.run(f"%%train meanwhile -o picked\n{DRAWN}")
    torched.run("first = torch.rand(1).item()")
    pool.until("meanwhile", "COMPLETED")
    torched.listen(lambda: torched.value("picked is not None"))
    second = torched.value("torch.rand(1).item()")
    torched.run("torch.manual_seed(5)")
    torched.run(DRAWS)

    assert torched.value("(torch.rand(1).item(), torch.rand(1).item())[1]") == second
