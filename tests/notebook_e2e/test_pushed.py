"""`--push` from a real kernel into real jobs."""

from __future__ import annotations

import pytest

from tests.notebook_e2e.rooms import Kernel, Pool


@pytest.fixture(scope="module")
def torched(kernel: Kernel) -> Kernel:
    kernel.run("import numpy as np\nimport torch\nfrom torch import nn")
    kernel.run(
        "class Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.one = nn.Linear(2, 2)\n    def forward(self, x):\n        return self.one(x)"
    )
    kernel.run(
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.body = nn.Sequential(Block(), Block())\n    def forward(self, x):\n        return self.body(x)"
    )
    return kernel


def test_job_continues_the_training_of_the_kernel(torched: Kernel, pool: Pool) -> None:
    torched.run(
        "torch.manual_seed(0)\nx, y = torch.randn(16, 2), torch.randn(16, 2)\nnet = Net()\n"
        "opt = torch.optim.Adam(net.parameters(), lr=0.05)\n"
        "plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.9 ** step)"
    )
    torched.run(
        "def train(steps):\n    for _ in range(steps):\n        opt.zero_grad()\n"
        "        ((net(x) - y) ** 2).mean().backward()\n        opt.step()\n        plan.step()"
    )
    torched.run("train(3)")

    sent = torched.run(
        "%%train goes_on --push net,opt,plan -o weights,known --wait\n"
        "known = [isinstance(net, Net), type(net.body[0]) is Block, plan.optimizer is opt,\n"
        "         {id(p) for p in net.parameters()} == {id(p) for g in opt.param_groups for p in g['params']}]\n"
        "train(2)\n"
        "weights = [p.detach().tolist() for p in net.parameters()]"
    )

    assert torched.value("known") == [True] * 4
    torched.run("train(2)")
    assert torched.value("weights == [p.detach().tolist() for p in net.parameters()]")
    (note,) = [one["text"] for one in sent.job["notes"] if one["code"] == "pushed"]
    assert note.startswith("sent by value: net, opt, plan (")
    assert note.endswith(" kB)")


def test_kernel_gradients_are_sent_if_the_cell_uses_them(torched: Kernel, pool: Pool) -> None:
    torched.run("leaf = nn.Linear(1, 1)\nleaf.weight.grad = torch.tensor([[3.0]])  # as an interrupted loop leaves it")
    compute = "leaf(torch.ones(1, 1)).sum().backward()\n"

    torched.run(f"%%train adds --push leaf -o sum --wait\n{compute}sum = leaf.weight.grad.item()")
    # `getattr` hides from the analysis that the cell looks at the gradient
    seen = "seen = getattr(leaf.weight, 'gr' + 'ad') is not None\n"
    torched.run(f"%%train clears --push leaf -o seen --wait\n{seen}leaf.zero_grad()\n{compute}")

    assert torched.value("sum") == 4.0
    assert torched.value("seen") is False
    assert torched.value("leaf.weight.grad.item()") == 3.0


def test_problem_found_while_pickling_is_traced_to_its_cell(torched: Kernel, pool: Pool) -> None:
    torched.run("import math\noffset = 10")
    torched.run("def scale(x):\n    return math.floor(x * 2)")
    torched.run("class Deep:\n    pass")
    torched.run("def hidden():\n    deep = Deep()\n    deep.hook = lambda x: scale(x) + offset\n    return deep")
    torched.run("box = [[[[{'k': (hidden(), [Block()])}]]]]")
    torched.run("get_ipython().user_ns['other'] = box")

    torched.run(
        "%%train deep --push other -o said --wait\n"
        "deep, (block,) = other[0][0][0][0]['k']\n"
        "said = deep.hook(1.7), type(deep).__name__, type(block) is Block, deep.__class__ is Deep"
    )

    assert torched.value("said") == (13, "Deep", True, True)


def test_dry_run_reports_the_size_of_a_push(torched: Kernel, pool: Pool) -> None:
    torched.run("table = np.zeros((1000, 250))")

    said = torched.run("%%train --dry-run --push table\nprint(table.sum())").stdout

    assert "  table by value (2.0 MB)\n" in said


def test_unpushed_references_to_a_pushed_object_are_reported(torched: Kernel, pool: Pool) -> None:
    torched.run("lone = Net()")
    made = torched.value("len(In)")
    torched.run("lone_opt = torch.optim.SGD(lone.parameters(), lr=1.0)")

    said = torched.run("%%train --dry-run --push lone\nlone(torch.ones(1, 2)).sum().backward()\nlone_opt.step()").stdout

    assert (
        f"recreated in the job around the pushed `lone`, without their own state: `lone_opt` (cell [{made}], line 1). "
        "To send their state, too: --push lone,lone_opt."
    ) in said


def test_an_optimiser_that_would_point_elsewhere_is_refused(torched: Kernel, pool: Pool) -> None:
    made = torched.value("len(In)")
    torched.run("first = Net()\nfirst_opt = torch.optim.SGD(first.parameters(), lr=1.0)")

    said = torched.run(
        "%%train --push first_opt\nfirst(torch.ones(1, 2)).sum().backward()\nfirst_opt.step()", fails=True
    )

    assert said.evalue == (
        f"Not submitted: 1 error to fix first.\n- cell [{made}], line 1: the job would create a new `first`, but the "
        "pushed `first_opt` refers to the current one. Push both: --push first_opt,first."
    )


def test_numpy_generators_and_data_continue_in_the_job(torched: Kernel, pool: Pool) -> None:
    torched.run("rng = np.random.default_rng(5)\nsame = rng\nfirst = rng.random()")
    torched.run("%%train chance --push rng -o drawn --wait\ndrawn = rng.random()")

    assert torched.value("[first, drawn, same.random()] == np.random.default_rng(5).random(3).tolist()")
