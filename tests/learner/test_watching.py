"""Programs as people write them, unchanged, in real jobs: their prints, bars and writers give curves and progress."""

from __future__ import annotations

import json
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest

from jupyter_dlaas.learner.log_capture.log_position import Place
from jupyter_dlaas.learner.log_capture.stdout_reader import Budget, Reader
from jupyter_dlaas.wire.journal import FactKind
from tests.runtime.jobs import Job

Build = Callable[..., Job]


def records(job: Job) -> list[dict[str, Any]]:
    path = job.dir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def curve(job: Job, name: str) -> list[tuple[int, float]]:
    return [(one["step"], one["values"][name]) for one in records(job) if name in one.get("values", {})]


def names(job: Job) -> set[str]:
    return {name for one in records(job) for name in one["values"]}


def progress(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.dir / "progress.json").read_text())
    return found


def ran(job: Build, source: str, deadline_s: float = 30.0, **options: Any) -> Job:
    one = job(dedent(source), **options)
    one.run()
    assert one.closed(deadline_s=deadline_s) == "completed", one.report()
    return one


def test_printed_epochs_give_curves_and_progress(job: Build) -> None:
    one = ran(
        job,
        """
        for epoch in range(1, 6):
            print(f"Epoch {epoch}/5")
            print("-" * 10)
            print(f"train Loss: {1 / epoch:.4f} Acc: {1 - 0.5 ** epoch:.4f}")
            print(f"val Loss: {2 / epoch:.4f} Acc: {1 - 0.6 ** epoch:.4f}")
        """,
    )

    assert curve(one, "train_loss") == [(1, 1.0), (2, 0.5), (3, 0.3333), (4, 0.25), (5, 0.2)]
    assert [step for step, _ in curve(one, "val_acc")] == [1, 2, 3, 4, 5]
    assert {one["source"] for one in records(one)} == {"log"}
    found = progress(one)
    assert (found["epoch"], found["epochs"], found["step"], found["steps"], found["fraction"]) == (5, 5, 5, 5, 1.0)


def test_steps_within_epochs_go_on_over_epochs(job: Build) -> None:
    one = ran(
        job,
        """
        for epoch in range(3):
            for i in range(0, 100, 50):
                print(f"Train Epoch: {epoch} [{i}/100 ({i}%)]\\tLoss: {3 - epoch:.6f}")
        """,
        epochs=3,
    )

    assert curve(one, "train_loss") == [(0, 3), (50, 3), (100, 2), (150, 2), (200, 1), (250, 1)]
    assert (progress(one)["step"], progress(one)["steps"], progress(one)["epoch"]) == (250, 300, 2)


def test_nested_bars_give_progress_and_their_postfix_is_drawn(job: Build) -> None:
    one = ran(
        job,
        """
        from tqdm.auto import tqdm, trange
        loader = [0.5] * 20
        for epoch in trange(4, desc="training"):
            bar = tqdm(loader, leave=False)
            for i, x in enumerate(bar):
                bar.set_postfix(loss=f"{1 / (epoch * 20 + i + 1):.4f}", lr=0.1, epoch=epoch)
            for x in tqdm([1, 2, 3], desc="validating"):
                pass
        """,
    )

    found = progress(one)
    assert (found["epoch"], found["epochs"], found["step"], found["steps"], found["fraction"]) == (4, 4, 80, 80, 1.0)
    assert names(one) == {"loss", "lr"}
    assert [step for step, _ in curve(one, "loss")] == list(range(80))
    assert {one["source"] for one in records(one)} == {"log"}


def test_bars_per_epoch_are_placed_by_lines_between(job: Build) -> None:
    one = ran(
        job,
        """
        from tqdm import tqdm
        for epoch in range(3):
            print(f"Epoch {epoch + 1} of 3")
            for x in tqdm(list("abcde"), desc="train"):
                pass
            for x in tqdm(list("ab"), desc="valid"):
                pass
            print(f"train loss {3 - epoch}.0, valid accuracy: {epoch / 4:.0%}")
        """,
    )

    assert curve(one, "train_loss") == [(1, 3.0), (2, 2.0), (3, 1.0)] or curve(one, "train_loss") == [
        (5, 3.0),
        (10, 2.0),
        (15, 1.0),
    ]
    assert [value for _, value in curve(one, "val_accuracy")] == [0, 0.25, 0.5]
    assert progress(one)["fraction"] == 1.0
    assert progress(one)["epochs"] == 3


def test_manually_updated_bar_reports_the_same(job: Build) -> None:
    one = ran(
        job,
        """
        from tqdm import tqdm
        with tqdm(total=200, desc="Epoch 1/2") as bar:
            for step in range(100):
                bar.update(2)
                bar.set_description(f"Epoch 1/2 loss: {1 / (step + 1):.3f}")
        """,
    )

    assert len(curve(one, "loss")) == 100
    found = progress(one)
    assert (found["step"], found["steps"], found["fraction"]) == (200, 400, 0.5)


@pytest.mark.parametrize("widgets", ["", "import sys; sys.modules['ipywidgets'] = None\n"], ids=["with", "without"])
def test_the_notebooks_bar_is_text_with_ipywidgets_and_without(job: Build, widgets: str) -> None:
    one = ran(
        job,
        widgets
        + dedent("""
        from tqdm.notebook import tqdm, trange
        import tqdm.notebook as module
        for epoch in tqdm(range(3), display=True):
            for step in trange(5, leave=False):
                pass
        print(tqdm.__module__, module.trange.__module__)
        """),
    )

    assert "3/3" in one.log()
    assert "tqdm.std tqdm.std" in one.log()
    assert progress(one)["fraction"] == 1.0


def test_notebook_bar_exists_after_importing_tqdm(job: Build) -> None:
    one = ran(job, "import tqdm\nfor _ in tqdm.notebook.tqdm(range(3)):\n    pass\nprint(hasattr(tqdm, 'nonsense'))")

    assert "False" in one.log()
    assert progress(one)["fraction"] == 1.0


def test_summary_writer_metrics_exclude_equal_prints(job: Build) -> None:
    one = ran(
        job,
        """
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter("runs")
        for step in range(3):
            writer.add_scalar("Loss/train", 3.0 - step, step)
            writer.add_scalars("acc", {"val": step / 10}, step)
            print(f"step {step} train loss: {3.0 - step} perplexity: {step + 1}.5")
        writer.close()
        """,
        deadline_s=150.0,  # TensorBoard imports TensorFlow where it is there
    )

    assert curve(one, "Loss/train") == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert curve(one, "acc/val") == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert curve(one, "train_perplexity") == [(0, 1.5), (1, 2.5), (2, 3.5)]
    assert names(one) == {"Loss/train", "acc/val", "train_perplexity"}


def test_prints_of_a_logging_program_are_ignored(job: Build) -> None:
    one = ran(
        job,
        """
        import jupyter_dlaas as dlaas
        from tqdm import trange
        run = dlaas.run()
        for epoch in trange(3):
            print(f"epoch {epoch} accuracy: 0.5 loss: {epoch}.25")
            run.log(loss=epoch)
        """,
    )

    assert {one["source"] for one in records(one)} == {"run"}
    assert names(one) == {"loss"}
    assert progress(one)["fraction"] == 1.0


def test_patterns_win_over_recognised_metrics(job: Build) -> None:
    one = ran(
        job,
        "for i in range(3):\n    print(f'epoch {i} loss: 9.0 true loss {1 / (i + 1):.2f} acc: 0.5')\n",
        metric_patterns=("true loss ([0-9.]+)",),
    )

    assert [value for _, value in curve(one, "loss")] == [1.0, 0.5, 0.33]
    assert [value for _, value in curve(one, "acc")] == [0.5] * 3


def test_autolog_off_draws_only_requested_metrics(job: Build) -> None:
    one = ran(
        job,
        """
        from tqdm import trange
        for i in trange(3):
            print(f"epoch {i} loss: 0.5 score: 0.25")
        """,
        metric_patterns=("score: ([0-9.]+)",),
        autolog=False,
    )

    assert names(one) == {"score"}
    assert not (one.dir / "progress.json").exists() or progress(one)["epochs"] is None


def test_prints_of_workers_are_not_recorded_twice(job: Build) -> None:
    one = ran(
        job,
        """
        import os
        for epoch in range(3):
            print(f"epoch {epoch} loss: 0.5", flush=True)
            if os.fork() == 0:
                print(f"epoch {epoch} loss: 0.7", flush=True)
                os._exit(0)
            os.wait()
        """,
    )

    assert curve(one, "loss") == [(0, 0.5), (1, 0.5), (2, 0.5)]


def test_only_the_first_learner_of_a_gang_is_read(job: Build) -> None:
    one = job("import os\nprint(f'epoch 1 loss: 0.{os.environ[\"RANK\"]}5')\n")
    one.run(2)

    assert one.closed() == "completed"
    assert curve(one, "loss") == [(1, 0.05)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001  # each look takes a millisecond
        return self.now


def test_framework_prints_during_training_are_not_parsed_later(job: Build) -> None:
    one = ran(
        job,
        """
        from jupyter_dlaas.learner.log_capture.recorder import leading, record_progress
        with leading():
            record_progress(epoch=40, epochs=40, step=1160, steps=1160)
            for number in range(10_000):  # more than there is time to read
                print(f"Epoch 29/29 - loss: {number / 10_000}")
        """,
    )

    found = progress(one)
    assert (found["epoch"], found["epochs"], found["step"], found["steps"]) == (40, 40, 1160, 1160)
    assert records(one) == []


def test_log_parsing_time_is_bounded_and_includes_the_end() -> None:
    clock, read = Clock(), list[str]()

    class Listed(Reader):
        def _recognise(self, text: str) -> None:
            read.append(text)

    reader = Listed([], Place(), recognises=True, budget=Budget(clock, clock))
    for number in range(10_000):
        reader.line(f"loss: {number}")
    reader.end()

    assert 200 <= len(read) <= 400
    assert read[-1] == "loss: 9999"


def test_an_interruption_while_reading_uses_no_budget() -> None:
    clock, read = Clock(), list[str]()

    class Interrupted(Reader):
        def _recognise(self, text: str) -> None:
            read.append(text)
            clock.now += 10.0

    reader = Interrupted([], Place(), recognises=True, budget=Budget(clock, lambda: 0.0))
    for number in range(9):
        reader.line(f"loss: {number}")

    assert len(read) == 9


def test_nan_loss_is_reported_once_across_guardians(job: Build) -> None:
    one = job(
        dedent(
            """
            import pathlib, time
            for epoch in range(4):
                print(f"epoch {epoch} loss {1.0 if epoch < 2 else float('nan')} val_loss inf")
            while not pathlib.Path("go").exists():
                time.sleep(0.02)
            """
        )
    )
    one.run()
    one.wait(FactKind.REPORT, 2)
    one.kill_guardian()
    one.start_guardian()
    one.wait(FactKind.GUARDIAN_UP, 2)
    (one.dir.parent / "go").touch()
    assert one.closed() == "completed", one.report()

    notes = [fact.note.text for fact in one.facts(FactKind.REPORT) if fact.note is not None]
    assert sorted(notes) == ["loss became NaN at step 2.", "val_loss is infinite from the first value (step 0)."]
    assert [value for _, value in curve(one, "loss")] == [1.0, 1.0, "NaN", "NaN"]
