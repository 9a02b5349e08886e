"""Learners that would train independently are reported; programs that share the work in any way are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from jupyter_dlaas.wire.journal import FactKind
from tests.runtime.jobs import Job, until
from tests.selection import covering, each_nth

Build = Callable[..., Job]
DEADLINE_S = 120.0
EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"

pytestmark = pytest.mark.timeout(400)

PLAIN = """
import jupyter_dlaas as dlaas
run = dlaas.run()
seen = run.state.setdefault("seen", [])
for epoch in run.epochs(2):
    for batch in run.batches(range(8), 4):
        seen.extend(batch)
"""
TORCH = """
import torch
import jupyter_dlaas as dlaas
{before}
run = dlaas.run()
torch.manual_seed(0)
data = torch.randn(16, 3)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
{prepare}
for epoch in run.epochs(2):
    {under}
    for batch in run.batches(data, 4):
        {step}
"""
STEP = "opt.zero_grad(); model(batch).square().mean().backward(); opt.step()"
LIGHTNING = """
import os
import lightning.pytorch as pl
import torch
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 3)), batch_size=4)
trainer = pl.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, {more}
    enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
)
trainer.fit(Net(), loader)
"""
DDP = 'strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]),'
TRANSFORMERS = """
import torch
from transformers import Trainer, TrainingArguments
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layer(x)[:, 0], labels)}
rows = [{"x": x, "labels": x.sum()} for x in torch.randn(16, 3)]
args = TrainingArguments(
    output_dir="trainer", num_train_epochs=2, per_device_train_batch_size=4, save_strategy="no", use_cpu=True,
    disable_tqdm=True, report_to="none", remove_unused_columns=False,
)
Trainer(model=Net(), args=args, train_dataset=rows).train()
"""
BOOSTED = """
import numpy, xgboost
x = numpy.random.default_rng(0).normal(size=(40, 3))
xgboost.train({}, xgboost.DMatrix(x, x.sum(1)), 5)
"""


def torch_program(*, prepare: str = "", step: str = STEP, before: str = "", under: str = "") -> str:
    return dedent(TORCH).format(prepare=prepare, step=step, before=before, under=under or "pass")


PREPARED = torch_program(prepare="model, opt = run.prepare(model, opt)")
UNPREPARED = torch_program()
EXACT = torch_program(
    prepare="model, opt = run.prepare(model, opt, shards=4)",
    step="run.train_step(lambda part: model(part).square().mean(), batch)",
)
OWN_DDP = torch_program(
    before="import torch.distributed as dist; dist.init_process_group('gloo')",
    prepare="net = torch.nn.parallel.DistributedDataParallel(model)",
    step=STEP.replace("model(", "net("),
)
IMPORTED_TALK = torch_program(before="import together")
TOGETHER = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
FSDP2 = (EXAMPLES / "fsdp2_digits.py").read_text().replace("epochs(30)", "epochs(1)")
LOOKED_AT = torch_program(under="torch.set_grad_enabled(False)", step="model(batch)")
OWN_LOOP = """
import jupyter_dlaas as dlaas
run = dlaas.run()
total = 0
for epoch in run.epochs(3):
    total += epoch
"""

OWN_STEPS = """
import torch
{before}
torch.manual_seed(0)
data = torch.randn(16, 3)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for batch in data.split(4):
        opt.zero_grad()
        {step}
        opt.step()
"""
BACK = "model(batch).square().mean().backward()"


def own_steps(before: str = "", step: str = BACK) -> str:
    return OWN_STEPS.format(before=before, step=step)


def reports(job: Job) -> list[Any]:
    assert job.closed(deadline_s=DEADLINE_S) == "completed", job.report()
    return job.facts(FactKind.ALONE)


@pytest.mark.parametrize(
    ("source", "says", "learners"),
    covering(
        [
            (PLAIN, "run.batches gives each a part of the data", 2),
            (PLAIN, "run.batches gives each a part of the data", 1),
            (UNPREPARED, "Add model, opt = run.prepare(model, opt)", 2),
            (UNPREPARED, "Add model, opt = run.prepare(model, opt)", 1),
            (own_steps(), "Share the work with run.prepare and run.batches", 2),
            (own_steps(), "Share the work with run.prepare and run.batches", 1),
            (OWN_LOOP, "each trains on all of the data", 2),
            (LIGHTNING.format(more=""), 'Trainer(strategy="ddp", devices=', 2),
            (LIGHTNING.format(more=""), 'Trainer(strategy="ddp", devices=', 1),
            (BOOSTED, "XGBoost trains in a single process", 1),
        ]
    ),
    ids=[
        "plain-2",
        "plain-1",
        "torch-2",
        "torch-1",
        "steps-2",
        "steps-1",
        "epochs-2",
        "lightning-2",
        "lightning-1",
        "xgboost-1",
    ],
)
def test_independent_training_is_reported_once_even_before_growth(
    job: Build, source: str, says: str, learners: int
) -> None:
    one = job(source, learners_max=2)
    one.run(learners)
    (fact,) = reports(one)

    assert says in (fact.why or "")
    assert "--gpus 1" in (fact.why or "")
    assert f"[{fact.why}]" in one.log(0)


SHARING = {
    "prepared": PREPARED,
    "exact mode": EXACT,
    "own DDP": OWN_DDP,
    "a module's own talk": IMPORTED_TALK,
    "own DDP in a loop of its own": own_steps("import torch.distributed as dist; dist.init_process_group('gloo')"),
    "a loop of its own that knows its rank": own_steps("import os; torch.manual_seed(int(os.environ['RANK']))"),
    "Lightning's ddp": LIGHTNING.format(more=DDP),
    "transformers": TRANSFORMERS,
}


@pytest.mark.parametrize(("name", "learners"), covering((name, learners) for learners in (2, 1) for name in SHARING))
def test_shared_training_is_not_reported(job: Build, name: str, learners: int) -> None:
    one = job(SHARING[name], learners_max=2, files={"together.py": TOGETHER}, framework="torch")
    one.run(learners)

    assert reports(one) == []


def test_steps_of_installed_packages_are_not_reported(job: Build, tmp_path: Path) -> None:
    (tmp_path / "installed.py").write_text("def back(model, batch):\n    model(batch).square().mean().backward()\n")
    there = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import installed"
    one = job(own_steps(there, "installed.back(model, batch)"), learners_max=2, framework="torch")
    one.run(learners=2)

    assert reports(one) == []


@pytest.mark.parametrize("source", each_nth([LOOKED_AT, FSDP2], 2), ids=["under no_grad", "FSDP2"])
def test_model_parts_and_evaluation_are_not_reported(job: Build, source: str) -> None:
    one = job(source, learners_max=2, framework="torch")
    one.run(learners=2)

    assert reports(one) == []


@pytest.mark.parametrize("spec", [{"learners_max": 1}, {"learners_max": 2, "elastic": "off"}], ids=["one", "off"])
def test_fixed_single_learner_job_gets_no_report(job: Build, spec: dict[str, object]) -> None:
    one = job(PLAIN, **spec)
    one.run()

    assert reports(one) == []


def test_independence_is_reported_once_across_guardians_and_learners(job: Build) -> None:
    one = job(
        PLAIN.replace("seen.extend(batch)", "run.output_dir.joinpath('go').exists() or __import__('time').sleep(.2)"),
        learners_max=2,
    )
    one.run()
    one.wait(FactKind.ALONE)
    one.kill_guardian()
    one.start_guardian()
    one.wait(FactKind.GUARDIAN_UP, 2)
    one.run(2)
    one.output("go").touch()
    until(lambda: one.facts(FactKind.CLOSED), "it ends", DEADLINE_S)

    assert len(reports(one)) == 1
