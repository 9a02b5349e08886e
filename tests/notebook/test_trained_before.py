"""The same training ran in the notebook before: the cell is submitted, and all advice is right."""

from __future__ import annotations

import pytest

from jupyter_dlaas.analysis.model import KernelFacts, NameFact
from tests.notebook.cases import codes, job

IMPORTS = "import contextlib, torch\nfrom torch import nn\nfrom tqdm import tqdm"
SETUP = (
    "torch.manual_seed(0)\nx = torch.randn(8, 2)\nloader = [(x, x[:, :1])]\nmodel = nn.Linear(2, 1)\n"
    "opt = torch.optim.SGD(model.parameters(), lr=0.1)\nn, kind, item = 3, 'a', None"
)
STEP = "opt.zero_grad(); loss.backward(); opt.step()"
TENSOR = KernelFacts(names={"loss": NameFact(type_name="torch.Tensor", shape="()", size_bytes=4)})
LOOPS = (
    "for a, b in loader:",
    "for i, (a, b) in enumerate(loader):",
    "for i in range(n):",
    "while step < n:",
    "for a, b in ((p, q) for p, q in loader):",
    "async for a, b in loader:",
)
BINDINGS = (
    "loss = model(x).sum()",
    "with torch.autocast('cpu'):\n    loss = model(x).sum()",
    "with torch.no_grad():\n    out = model(x)\nwith torch.autocast('cpu'), tqdm(loader) as b:\n    loss = out.sum()",
    "with accelerator.accumulate(model):\n    loss = model(x).sum()",
    "with contextlib.suppress(RuntimeError):\n    loss = model(x).sum()",
    "try:\n    loss = model(x).sum()\nexcept RuntimeError:\n    print('out of memory')",
    "try:\n    loss = model(x).sum()\nexcept RuntimeError:\n    continue",
    "if n > 2:\n    loss = model(x).sum()\nelse:\n    loss = model(x).mean()",
    "match kind:\n    case 'a':\n        loss = model(x).sum()",
    "for part in loader:\n    with torch.enable_grad():\n        loss = model(part[0]).sum()",
    "if item is None:\n    with tqdm(loader) as bar:\n        loss = model(x).sum()",
    "async with item:\n    loss = model(x).sum()",
)


def indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.split("\n"))


def loop(head: str, binding: str) -> str:
    body = indented(f"{binding}\n{STEP}", 8)
    return f"step = 0\nfor epoch in range(2):\n    {head}\n{body}\n    print(epoch, loss.item())"


@pytest.mark.parametrize(
    ("head", "binding"), [*((one, BINDINGS[1]) for one in LOOPS), *((LOOPS[0], one) for one in BINDINGS)]
)
def test_name_bound_by_the_loop_itself_is_not_refused(head: str, binding: str) -> None:
    train = loop(head, binding)
    cells = (IMPORTS, "def make():\n    pass\naccelerator = make()", SETUP, train, SETUP)

    assert codes(job(*cells, train=train, facts=TENSOR)) == []
    assert codes(job(*cells, train=f"{train}\nprint(loss)", facts=TENSOR)) == []


def test_name_read_before_the_loop_binds_it_is_a_warning() -> None:
    train = f"for i in range(3):\n    if i % 2 == 0:\n        print(loss)\n    loss = model(x).sum()\n    {STEP}"
    made = job(IMPORTS, SETUP, train, SETUP, train=train, facts=TENSOR)

    assert codes(made) == ["late_undefined"]
    assert "may read `loss` (torch.Tensor, (), 4 bytes) before it is defined there." in made.warnings[0].message
    assert "Use --push loss to send its current value" in made.warnings[0].message


def test_training_is_not_repeated_for_names_of_a_loop() -> None:
    define = f"def train(m):\n    loss = m(x).sum()\n    {STEP}\n    return loss"
    made = job(IMPORTS, SETUP, define, "loss = train(model)", SETUP, train=loop(LOOPS[0], BINDINGS[0]), facts=TENSOR)

    assert codes(made) == []
    assert "loss = train(model)" not in made.text
