"""Objects whose class keeps one `__dict__` for all of them stay connected to it in results and pushed objects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.pushed_objects import load_pushed, write_pushed
from jupyter_dlaas.transfer.result_restore import restore


class Settings:
    """The Borg pattern, as notebooks use it for configuration."""

    __shared: dict[str, Any] = {}  # noqa: RUF012  # shared on purpose

    def __init__(self) -> None:
        self.__dict__ = self.__shared


class Trainer:
    """Object of a user's that holds a model and the settings."""

    def __init__(self) -> None:
        self.model, self.settings = nn.Linear(2, 1), Settings()


@pytest.fixture(autouse=True)
def settings() -> Iterator[Settings]:
    one: Any = Settings()
    one.rate = 0.1
    yield one
    vars(one).clear()


def stored(value: Any, folder: Path) -> Any:
    return results.load(results.dump(value))


def pushed(value: Any, folder: Path) -> Any:
    write_pushed(folder / "pushed.bin", {"value": value})
    return load_pushed(folder / "pushed.bin", ["value"])


@pytest.mark.parametrize("way", [stored, pushed])
def test_loaded_object_shares_the_state_of_its_class(
    settings: Any, way: Callable[[Any, Path], Any], tmp_path: Path
) -> None:
    found = way([settings], tmp_path)[0]

    settings.rate = 0.5
    assert vars(found) is vars(settings)
    assert found.rate == 0.5


def test_state_is_brought_along_where_there_is_none(settings: Any) -> None:
    data = results.dump(settings)
    vars(settings).clear()

    assert results.load(data).rate == 0.1
    assert Settings().rate == 0.1  # type: ignore[attr-defined]


def test_state_of_this_process_is_kept(settings: Any) -> None:
    data = results.dump(settings)
    settings.rate = 0.7

    assert results.load(data).rate == 0.7


def test_restored_holder_keeps_its_shared_state(settings: Any) -> None:
    old, new = Trainer(), stored(Trainer(), Path())

    found = restore({"trainer": new}, {"trainer": old}, changed=["trainer"])

    settings.rate = 0.9
    assert found.values["trainer"] is old
    assert old.settings.rate == 0.9


ACCUMULATING = """
import sys, torch
sys.path[:0] = {path!r}
from accelerate import Accelerator
from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.result_restore import restore
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
plan = torch.optim.lr_scheduler.StepLR(optimizer, 3)
model, optimizer, plan = accelerator.prepare(model, optimizer, plan)
job = results.load(results.dump(dict(model=model, optimizer=optimizer, plan=plan)))
found = restore(job, dict(model=model, optimizer=optimizer, plan=plan), changed=["plan"]).values
for values in (job, found):
    steps = 0
    for _ in range(4):
        with accelerator.accumulate(values["model"]):
            before = values["model"].weight.clone()
            accelerator.backward(values["model"](torch.ones(1, 2)).sum())
            values["optimizer"].step()
            values["plan"].step()
            values["optimizer"].zero_grad()
            steps += not torch.equal(before, values["model"].weight)
    print(steps)
"""


def test_returned_optimiser_of_accelerate_still_accumulates() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ACCUMULATING.format(path=sys.path)], capture_output=True, text=True, timeout=100
    )

    assert done.stdout.split() == ["2", "2"], done.stderr[-2000:]


TRAINER = """
import sys, torch
sys.path[:0] = {path!r}
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.result_restore import restore
size = dict(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4)
rows = [dict(input_ids=torch.tensor([i % 9, 1]), labels=i % 2) for i in range(16)]
options = dict(max_steps=3, per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True)
def made():
    model = BertForSequenceClassification(BertConfig(**size))
    args = TrainingArguments({folder!r}, save_strategy="no", gradient_accumulation_steps=2, **options)
    return dict(model=model, trainer=Trainer(model, args, train_dataset=rows))
there, here = made(), made()
model = here["model"]
there["trainer"].train()
found = restore(results.load(results.dump(there)), here, changed=["trainer"]).values
trained = there["model"].state_dict()
print(found["model"] is model is found["trainer"].model)
print(all(torch.equal(one, trained[name]) for name, one in model.state_dict().items()))
print(found["trainer"].state.global_step)
found["trainer"].train()
print(any(not torch.equal(one, trained[name]) for name, one in model.state_dict().items()))
"""


def test_trainer_of_transformers_returns_with_its_model(tmp_path: Path) -> None:
    code = TRAINER.format(path=sys.path, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)

    said = [line for line in done.stdout.splitlines() if not line.startswith("{")]
    assert said == ["True", "True", "3", "True"], done.stderr[-2000:]
