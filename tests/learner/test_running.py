"""The learner API in real jobs: halts, resizes and kills lose nothing and double nothing."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.runtime.system.process import is_alive
from jupyter_dlaas.transfer.results import load_graph
from jupyter_dlaas.wire.journal import FactKind
from tests.learner.in_process import start
from tests.learner.programs import PLAIN, TORCH, assert_each_sample_once
from tests.runtime.jobs import Job, make_job, until
from tests.selection import each_nth

Build = Callable[..., Job]
SAVING = PLAIN.replace("total += sum(batch)", "run.checkpoint(); total += sum(batch)")
"""The same with a checkpoint at each boundary."""


def result(job: Job, name: str) -> Any:
    path = job.dir / "results" / f"{name}.bin"
    return load_graph(name, path.read_bytes(), (job.dir / "train.py").read_text)[name]


def pause_at(job: Job, *steps: int) -> None:
    job.output("pause").write_text(" ".join(map(str, steps)))


def reach(job: Job, step: int, *members: int) -> None:
    there = [job.output(f"at-{step}-{member}") for member in members]
    until(lambda: all(one.exists() for one in there), lambda: f"{members} are at step {step}\n{job.report()}")


def go_on(job: Job, step: int) -> None:
    job.output(f"go-{step}").touch()


def go_on_to_stop(job: Job, step: int) -> None:
    """Go on as soon as the learner has been asked to leave."""
    job.output("part").write_text("stop")
    job.output("part").rename(job.output(f"go-{step}"))


def assert_whole(job: Job) -> None:
    """Check that PLAIN leaves what it leaves in an undisturbed run."""
    assert_each_sample_once(job, samples=23, epochs=3)
    found = result(job, "result")
    total = sum(range(23))
    assert found["seen"] == [total] * 3
    assert found["best"] == 22
    assert found["table"] == {str(step): 4 if step % 6 else 3 for step in range(1, 19)}
    assert found["sum"] == 3 * total
    assert found["alias"]
    history = result(job, "history")
    assert history["total"] == [total] * 3
    assert history["rate"] == [1, 1 / 2, 1 / 3]
    assert len(history["batch"]) == 18
    assert sum(history["batch"]) == 3 * total


def test_a_run_that_nothing_happens_to_trains_each_sample_once(job: Build) -> None:
    one = job(PLAIN, outputs=("result", "history"))
    one.run()

    assert one.closed() == "completed"
    assert_whole(one)
    assert one.wait(FactKind.GENERATION).step == 0
    assert [(f.first_step, f.step, f.epoch) for f in one.facts(FactKind.COMMITTED)] == [
        (0, 6, 0),
        (6, 12, 1),
        (12, 18, 2),
    ]
    completed = one.wait(FactKind.COMPLETED)
    assert (completed.results, completed.step) == (("result", "history"), 18)
    progress = json.loads((one.dir / "progress.json").read_text())
    assert (progress["epochs"], progress["step"], progress["steps"], progress["fraction"]) == (3, 18, 18, 1.0)


def test_evaluation_after_the_last_epoch_shows_all_epochs(tmp_path: Path) -> None:
    program = """
        import json, pathlib
        import jupyter_dlaas as dlaas
        for epoch in dlaas.run().epochs(300): pass
        shown = json.loads(pathlib.Path(__file__).with_name("progress.json").read_text())
    """
    found = start(tmp_path / "job", textwrap.dedent(program))

    assert found is not None
    assert (found["shown"]["epoch"], found["shown"]["fraction"]) == (300, 1.0)


@pytest.mark.parametrize("step", each_nth([6, 1, 17, 9], 2))
def test_halt_and_resume_go_on_at_the_very_next_step(job: Build, step: int) -> None:
    one = job(PLAIN, outputs=("result", "history"))
    pause_at(one, step)
    one.run()
    reach(one, step, 0)
    one.halt()
    go_on_to_stop(one, step)
    assert one.closed() == "halted"
    halted = one.wait(FactKind.HALTED)
    one.run()

    assert one.closed(2) == "completed"
    assert halted.has_checkpoint
    assert halted.step is not None
    assert halted.step == step
    assert one.facts(FactKind.GENERATION)[1].step == halted.step
    assert_whole(one)


def saved(job: Job, step: int) -> None:
    """Checkpoints are written beside the training: wait for one."""
    until((job.dir / "checkpoints" / f"step-{step:010}").exists, f"there is a checkpoint of step {step}")


def test_kill_returns_to_the_last_checkpoint_without_double_counting(job: Build) -> None:
    one = job(SAVING, outputs=("result", "history"), checkpoint_every_s=0)
    pause_at(one, 8, 15)
    one.run()
    reach(one, 8, 0)
    saved(one, 7)
    one.kill_learner(0)
    lost = one.wait(FactKind.LOST)
    go_on(one, 8)
    one.run()
    reach(one, 15, 1)
    saved(one, 14)
    one.kill_learner(1)
    one.wait(FactKind.LOST, 2)
    go_on(one, 15)
    one.run()

    assert one.closed() == "completed"
    assert lost.step == 7  # the step in flight is trained again, no other
    assert [fact.step for fact in one.facts(FactKind.GENERATION)] == [0, 7, 14]
    assert_whole(one)


def test_kill_without_checkpoint_starts_over_and_drops_metrics(job: Build) -> None:
    one = job(PLAIN, outputs=("result", "history"), checkpoint_every_s=0)
    pause_at(one, 8)
    one.run()
    reach(one, 8, 0)
    one.kill_learner(0)
    lost = one.wait(FactKind.LOST)
    go_on(one, 8)
    one.run()

    assert one.closed() == "completed"
    assert lost.step is None
    assert_whole(one)


def test_damaged_checkpoint_is_moved_aside_for_the_one_before(job: Build) -> None:
    one = job(SAVING, outputs=("result", "history"), checkpoint_every_s=0)
    pause_at(one, 9)
    one.run()
    reach(one, 9, 0)
    saved(one, 8)
    one.kill_learner(0)
    one.wait(FactKind.LOST)
    go_on(one, 9)
    folders = sorted(one.dir.glob("checkpoints/step-*"))[-2:]  # killed before it took the oldest away, or after
    assert [folder.name for folder in folders] == ["step-0000000007", "step-0000000008"]
    state = folders[-1] / "state.bin"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    one.run()

    assert one.closed() == "completed"
    assert one.facts(FactKind.GENERATION)[1].step == 7
    assert "damaged" in one.log(1)
    assert_whole(one)


def test_next_guardian_gets_all_reports_and_can_halt(job: Build) -> None:
    one = job(PLAIN, outputs=("result", "history"))
    pause_at(one, 5)
    one.run()
    reach(one, 5, 0)
    one.kill_guardian()
    one.halt()  # no guardian lives: this starts one
    go_on_to_stop(one, 5)
    assert one.closed() == "halted"
    one.run()

    assert one.closed(2) == "completed"
    assert one.facts(FactKind.HALTED)[0].has_checkpoint
    assert_whole(one)


def test_a_learner_without_a_guardian_checkpoints_and_leaves(job: Build) -> None:
    one = job(PLAIN, outputs=("result", "history"), environment={"DLAAS_TTL_S": "0.2"})
    pause_at(one, 5)
    one.run()
    reach(one, 5, 0)
    one.kill_guardian()
    learner = one.learner(0)
    time.sleep(0.5)  # the guardian must not answer for longer than the limit
    go_on(one, 5)
    until(lambda: not is_alive(learner), "the learner left by itself")
    one.start_guardian()
    lost = one.wait(FactKind.LOST)
    one.run()

    assert one.closed() == "completed"
    assert lost.step == 5
    assert lost.failure is not None
    assert lost.failure.code == "unguarded"
    assert_whole(one)


def test_on_halt_is_called_before_the_checkpoint_and_state_travels(job: Build) -> None:
    one = job(
        PLAIN.replace("    for epoch", "    run.on_halt(lambda: run.state.update(halted='yes'))\n    for epoch", 1)
        + "    halted = run.state.get('halted')\n",
        outputs=("halted",),
    )
    pause_at(one, 5)
    one.run()
    reach(one, 5, 0)
    one.halt()
    go_on_to_stop(one, 5)
    one.closed()
    one.run()

    assert one.closed(2) == "completed"
    assert result(one, "halted") == "yes"


def test_checkpoint_on_request_is_written_at_the_next_boundary(job: Build) -> None:
    one = job(PLAIN.replace("record(run", "run.step == 3 and run.checkpoint(); record(run"), checkpoint_every_s=0)
    one.run()

    assert one.closed() == "completed"
    assert [fact.step for fact in one.facts(FactKind.CHECKPOINT)] == [3]


def test_a_loop_over_epochs_only_resumes_at_its_epoch(job: Build) -> None:
    source = """
    import os, pathlib, time
    from jupyter_dlaas import run
    out = pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output"
    r = run()
    done = []
    for epoch in r.epochs(5):
        r.log(x=epoch)
        done.append(epoch)
        if epoch == 2 and os.environ["DLAAS_GENERATION"] == "1":
            (out / "there").touch()
            while not r.internals.boundaries.is_stopping:
                time.sleep(0.005)
    history = r.history
    """
    one = job(source, outputs=("done", "history"))
    one.run()
    until(one.output("there").exists, "epoch 2")
    one.halt()
    assert one.closed() == "halted"
    one.run()

    assert one.closed(2) == "completed"
    assert one.facts(FactKind.HALTED)[0].step == 3
    assert result(one, "done") == [0, 1, 2, 3, 4]
    assert result(one, "history") == {"x": [0, 1, 2, 3, 4]}


def test_loop_that_checks_should_stop_counts_as_halted(job: Build) -> None:
    source = """
    import os, pathlib, time
    from jupyter_dlaas import run
    out = pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output"
    r = run()
    n = r.state.get("n", 0)
    while n < 10**9 and not r.should_stop:
        n += 1
        time.sleep(0.001)
        if n == 10:
            (out / "there").touch()
        if (out / "enough").exists():
            break
    r.state["n"] = n
    r.checkpoint()
    """
    one = job(source, outputs=("n",))
    one.run()
    until(one.output("there").exists, "it runs")
    one.halt()
    assert one.closed() == "halted"
    assert one.wait(FactKind.HALTED).has_checkpoint
    one.output("enough").touch()
    one.run()

    assert one.closed(2) == "completed"
    assert result(one, "n") > 10


def test_numbers_in_printed_lines_become_metrics_and_a_history(job: Build) -> None:
    one = job(
        "for i in range(3):\n    print(f'epoch {i} loss: {1 / (i + 1):.2f} acc={i}', flush=True)\n",
        metric_patterns=("loss: ([0-9.]+)", "acc=(?P<accuracy>[0-9]+)"),
    )
    one.run()

    assert one.closed() == "completed"
    records = [json.loads(line) for line in (one.dir / "metrics.jsonl").read_text().splitlines()]
    assert [record["values"] for record in records] == [
        {"loss": 1.0, "accuracy": 0},
        {"loss": 0.5, "accuracy": 1},
        {"loss": 0.33, "accuracy": 2},
    ]
    assert {record["source"] for record in records} == {"log"}


def test_unrestorable_value_is_reported_and_others_restored(job: Build) -> None:
    one = job("import threading\ngood = [1]\nbad = threading.Lock()\n", outputs=("good", "bad", "none"))
    one.run()

    assert one.closed() == "completed"
    assert one.wait(FactKind.COMPLETED).results == ("good",)
    assert result(one, "good") == [1]
    assert "[bad could not be returned: a lock cannot be stored" in one.log()
    assert "[none could not be returned: the job defines no such name]" in one.log()


def test_a_notebooks_habits_do_not_end_a_job(job: Build) -> None:
    one = job(
        """
        class Drawing:
            def __repr__(self): return "a drawing"
            def _repr_png_(self): return b"png"
        display("hello", Drawing())
        shell = get_ipython()
        try:
            input("name? ")
        except EOFError as error:
            print(type(error).__name__, error)
        """,
        cells={"1-10": "cell [1]:1"},
        outputs=("shell",),
    )
    one.run()

    assert one.closed() == "completed"
    assert one.log().startswith(
        "hello\na drawing\n[kept as display-001.png]\nNoKeyboard input('name? ') cannot prompt for input"
    )
    assert one.output("display-001.png").read_bytes() == b"png"
    assert result(one, "shell") is None


def test_figures_that_are_shown_become_pictures_of_the_job(job: Build) -> None:
    one = job("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n", cells={"1-3": "cell [1]:1"})
    one.run()

    assert one.closed() == "completed"
    assert one.output("figure-001.png").read_bytes().startswith(b"\x89PNG")


# -- with torch --------------------------------------------------------------------------------------------------------


def largest_difference(one: Any, other: Any) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the weights that one undisturbed learner trains."""
    one = make_job(tmp_path_factory.mktemp("undisturbed") / "job", TORCH, outputs=("weights",), framework="torch")
    one.run()
    assert one.closed() == "completed"
    return result(one, "weights")


def test_two_learners_train_the_same_weights_as_one_tail_included(job: Build, undisturbed: Any) -> None:
    one = job(TORCH, outputs=("weights", "history", "model", "losses"), framework="torch")
    one.run(2)

    assert one.closed() == "completed"
    assert_each_sample_once(one, samples=53, epochs=3)
    assert largest_difference(result(one, "weights"), undisturbed) < 1e-6
    assert list(result(one, "weights")) == [f"layers.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")]
    assert len(result(one, "history")["loss"]) == 3
    read = [line.split()[1] for member in (0, 1) for line in one.lines(f"read-{member}")]
    assert sorted(map(int, read)) == sorted(list(range(53)) * 3)


def test_resizes_and_kills_change_neither_weights_nor_coverage(job: Build, undisturbed: Any) -> None:
    one = job(TORCH, outputs=("weights", "losses", "history"), framework="torch", checkpoint_every_s=0.0001)
    pause_at(one, 4, 9, 13)
    one.run(1)
    reach(one, 4, 0)
    one.run(2)  # 1 -> 2
    go_on_to_stop(one, 4)
    reach(one, 9, 1, 2)
    one.run(1)  # 2 -> 1
    go_on_to_stop(one, 9)
    reach(one, 13, 3)
    one.kill_learner(3)
    one.wait(FactKind.LOST)
    go_on(one, 13)
    one.run(3)

    assert one.closed(deadline_s=90) == "completed"
    assert_each_sample_once(one, samples=53, epochs=3)
    assert largest_difference(result(one, "weights"), undisturbed) < 1e-6
    assert result(one, "losses") == pytest.approx([0.07, 0.049, 0.0343])
    assert len(result(one, "history")["loss"]) == 3
    learners = [fact.generation for fact in one.facts(FactKind.LEARNER_UP)]
    assert learners == [1, 2, 2, 3, 4, 4, 4]
    idle = [fact.idle_s for fact in one.facts(FactKind.GENERATION)]
    assert idle[0] is None
    assert all(isinstance(one, float) for one in idle[1:])


def test_a_script_for_torchrun_runs_unchanged(job: Build) -> None:
    one = job(
        """
        import os
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        assert int(os.environ["LOCAL_RANK"]) == rank and dist.get_world_size() == 2
        model = DDP(torch.nn.Linear(2, 1))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            opt.zero_grad()
            model(torch.ones(4, 2) * (rank + 1)).sum().backward()
            opt.step()
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        value = total.item()
        dist.destroy_process_group()
        """,
        outputs=("value",),
    )
    one.run(2)

    assert one.closed(deadline_s=60) == "completed"
    assert result(one, "value") == 3.0


def test_error_in_one_learner_is_the_only_cause(job: Build) -> None:
    one = job(
        TORCH.replace("opt.step()\n", "opt.step()\n            assert run.step < 5 or run.rank == 0, 'bad sample'\n")
    )
    one.run(2)

    failure = one.wait(FactKind.LOST, deadline_s=60).failure
    assert failure is not None
    assert (failure.what, failure.raised_by) == ("AssertionError: bad sample", (1,))
