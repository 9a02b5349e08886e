"""Random streams: noted in the notebook, put back in its job, for each library and whenever that is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jupyter_dlaas.learner.environment import seeds
from jupyter_dlaas.objects import process_settings
from jupyter_dlaas.transfer import cuda_streams, rng_state
from tests.learner.in_process import SETUP, start
from tests.selection import exhaustive

ROOT = Path(__file__).parents[2]
NOTEBOOK = """
import json, sys
from jupyter_dlaas.transfer import rng_state as streams
found = {}
streams.note_beginnings(found.__setitem__)
early = streams.written()
BEFORE
LOOK
noted = streams.completed(streams.written() if NOTES_LATE else early, found)
print(json.dumps([noted, DRAW]))
"""
JOB = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from jupyter_dlaas.learner.training_run import rng_restore as streams
streams.current = lambda: SimpleNamespace(job_dir=Path(sys.argv[1]), seed=7)
streams.random_anew()  # as at the start of a job
LOADED
streams.random_as_before(3)
BEFORE
print(json.dumps(DRAW))
"""


def run(source: str, folder: Path, **parts: str) -> str:
    for name, text in parts.items():
        source = source.replace(name, text)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", dedent(source), str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip().splitlines()[-1]


PYTHON = ("import random", "random.random()", False)
NUMPY = ("import numpy.random as npr", "npr.rand(3).tolist()", False)
TORCH = ("import torch", "torch.rand(3).tolist()", False)
TENSORFLOW = ("import tensorflow as tf; tf.random.set_seed(0)", "tf.random.uniform((3,)).numpy().tolist()", True)
KERAS = ("import keras; keras.utils.set_random_seed(0)", "keras.random.normal((3,)).numpy().tolist()", True)


@pytest.mark.parametrize(
    ("before", "draw", "is_seeded", "is_loaded"),
    [
        (*PYTHON, True),
        (*NUMPY, True),
        (*NUMPY, False),
        (*TORCH, False),
        pytest.param(*TENSORFLOW, False, marks=exhaustive),
        pytest.param(*TORCH, True, marks=exhaustive),
        pytest.param(*TENSORFLOW, True, marks=exhaustive),
        pytest.param(*KERAS, True, marks=exhaustive),
        pytest.param(*KERAS, False, marks=exhaustive),
    ],
)
def test_job_draws_the_numbers_of_the_notebook(
    before: str, draw: str, is_seeded: bool, is_loaded: bool, tmp_path: Path
) -> None:
    look = draw if is_seeded else "pass"  # the notebook drew something that the job leaves out
    noted, wanted = json.loads(
        run(
            NOTEBOOK,
            tmp_path,
            BEFORE=before,
            LOOK=look,
            DRAW=draw,
            NOTES_LATE=str(is_seeded),
        )
    )
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "chance.json").write_text(json.dumps({"3": noted}))

    first, then = (before, "pass") if is_loaded else ("pass", before.partition(";")[0])
    found = run(JOB, tmp_path, LOADED=first, BEFORE=then, DRAW=draw)

    assert json.loads(found) == wanted


@pytest.mark.parametrize(("given", "expected"), [(None, "8"), ("5", "5")])
def test_gpus_of_cupy_are_seeded_when_they_first_draw(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for `cupy.random`, with its dictionary of states: no GPU and no CuPy are needed."""
    seeds_of_used: list[int] = []
    used = SimpleNamespace(seed=seeds_of_used.append)
    stand_in: Any = SimpleNamespace(_generator=SimpleNamespace(_random_states={0: used}))
    monkeypatch.setitem(sys.modules, "cupy.random", stand_in)
    monkeypatch.setenv("CUPY_SEED", given or "")  # so that the test removes it afterwards
    if given is None:
        monkeypatch.delenv("CUPY_SEED")
    outside = rng_state.snapshot()

    for seed in (7, 8):
        seeds.seed_all(seed)

    rng_state.put_back(outside)
    assert os.environ["CUPY_SEED"] == expected
    assert seeds_of_used == [7, 8]
    stored = [name for name, _ in process_settings._settings()]
    assert not any("CUPY_SEED" in name for name in stored), "each learner has its own"


LOOP = f"""{SETUP}
import sys
cp = sys.modules["cupy.random"]
cp.get_random_state()
run = dlaas.run()
for epoch in run.epochs(2):
    for batch in run.batches(torch.ones(20, 1), 5):
        IN_STEP
"""


@pytest.mark.parametrize(
    ("step", "is_reported"),
    [("cp.draw()", True), ("pass", False), ("cp.random.seed(run.step); cp.draw()", False)],
)
def test_draws_of_cupy_in_a_loop_are_reported(
    step: str,
    is_reported: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    owner = SimpleNamespace(_random_states={}, get_random_state=object)
    stand_in: Any = SimpleNamespace(_generator=owner, draw=lambda: owner.get_random_state())
    stand_in.random = SimpleNamespace(seed=int)
    monkeypatch.setitem(sys.modules, "cupy.random", stand_in)
    monkeypatch.setenv("CUPY_SEED", "1")

    start(tmp_path, LOOP.replace("IN_STEP", step), stop_at=3)

    said = capfd.readouterr().err
    assert ("cannot keep `random streams of CuPy`" in said) == is_reported
    assert ("call cupy.random.seed(run.step) at the beginning of each step" in said) == is_reported


def test_own_streams_of_cupy_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stream = "class RandomState: pass\nRandomState.__module__ = 'cupy.random._generator'\nabove = RandomState()\n"
    loop = LOOP.replace('cp = sys.modules["cupy.random"]\ncp.get_random_state()\n', stream)
    start(tmp_path, loop.replace("IN_STEP", "late = RandomState() if run.step == 1 else late"), stop_at=3)

    said = capfd.readouterr().err
    assert "`above` cannot be kept in checkpoints" in said
    assert "cannot keep `late` (TypeError: CuPy cannot return the position of a random stream)" in said


def test_pending_seed_reaches_the_gpus_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.manual_seed is applied to GPUs only when CUDA is initialized, which here it never is."""
    cuda: Any = torch.cuda
    monkeypatch.setattr(torch.cuda, "_lazy_seed_tracker", cuda._LazySeedTracker())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert cuda_streams.states(torch) == [], "never seeded"
    torch.manual_seed(-2)
    in_notebook = cuda_streams.states(torch)
    torch.manual_seed(7)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    cuda_streams.put(torch, in_notebook)

    assert [bytes(state.tolist()) for state in in_notebook] == [b"\xfe" + b"\xff" * 7 + bytes(8)] * 3
    assert [state.tolist() for state in cuda_streams.states(torch)] == [state.tolist() for state in in_notebook[:2]]
    torch.manual_seed(9)
    assert cuda_streams.states(torch)[0].tolist() == [9, *[0] * 15], "a later seed counts"


@pytest.mark.parametrize(("devices", "accelerator", "seeded_gpus"), [("", "", 0), ("", "npu", 2), ("0,1", "", 2)])
def test_only_accelerators_that_a_learner_may_use_are_seeded(
    devices: str, accelerator: str, seeded_gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torch.manual_seed` seeds all kinds at once: of those, the pending seeds of GPUs can be seen without hardware."""
    if accelerator:
        monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: accelerator)
        monkeypatch.setattr(torch, accelerator, SimpleNamespace(), raising=False)
        monkeypatch.setattr(torch.random, "_seed_custom_device", lambda seed: None)
    cuda: Any = torch.cuda
    monkeypatch.setattr(torch.cuda, "_lazy_seed_tracker", cuda._LazySeedTracker())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    outside = rng_state.snapshot()
    expected = torch.Generator().manual_seed(5)

    seeds.seed_all(5)

    found = torch.rand(3)
    rng_state.put_back(outside)
    assert torch.equal(found, torch.rand(3, generator=expected))
    assert len(cuda_streams.states(torch)) == seeded_gpus
