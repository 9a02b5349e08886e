"""Disks that are full, checkpoints that are damaged: training continues, and each sample still counts once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.jobdir.checkpoint_manifest import STATE, manifests
from jupyter_dlaas.wire.journal import FactKind
from tests.learner.fault_matrix import ends_whole, lost, trials, warmed
from tests.learner.live_programs import FAULTY, trains
from tests.learner.test_live import EPOCHS, OPTIONS
from tests.runtime.jobs import Job, make_job, until
from tests.selection import each_nth, exhaustive

Build = Callable[..., Job]


@pytest.fixture
def saving(job: Build) -> Callable[..., Job]:
    """Build a job that writes checkpoints, some in each second."""

    def build(source: str = FAULTY, **options: Any) -> Job:
        return job(source, **(OPTIONS | {"checkpoint_every_s": 0.05} | options))

    return build


@pytest.fixture
def on_a_small_disk(tmp_path: Path, zygotes: Path) -> Iterator[Job]:
    """Build a job whose folder is on a disk of 8 MB. Files that its program writes itself are elsewhere."""
    disk, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    disk.mkdir()
    elsewhere.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", disk], check=True)
    one = make_job(disk / "job", FAULTY, **(OPTIONS | {"checkpoint_every_s": 0.05}))
    try:
        one.output("").rmdir()
        (one.dir / "output").symlink_to(elsewhere)
        yield warmed(one, zygotes)
        one.want_nothing()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def fill(folder: Path) -> Path:
    """Take all that is left of a disk."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 9, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return path


@trials
@pytest.mark.parametrize("victim", each_nth([0, 1], 2))
def test_gang_on_a_full_disk_trains_and_survives_a_death(on_a_small_disk: Job, victim: int, trial: int) -> None:
    one = on_a_small_disk
    one.run(3)
    trains(one, 2)
    until(lambda: manifests(one.dir), "there is a checkpoint")
    filler = fill(one.dir)
    trains(one, 2, steps=20)
    one.kill_learner(victim)
    trains(one, 2, steps=20, size=2)
    filler.unlink()

    failure = lost(one)[0].failure
    assert failure.code == "killed"
    ends_whole(one, survivor=2, epochs=EPOCHS, uses_checkpoint=True)
    assert all(fact.n == n for n, fact in enumerate(one.facts())), "the journal has no hole"


@exhaustive
@trials
def test_file_size_limit_costs_checkpoints_but_not_the_job(saving: Build, trial: int) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
    one = saving(limit + FAULTY.replace("losses = []\n", "losses = []; big = torch.zeros(100_000)\n", 1).replace(
        "fault();", 'run.state["big"] = big;'
    ))  # fmt: skip
    one.run(2)
    trains(one, 0)
    one.kill_learner(1)
    lost(one)

    ends_whole(one, epochs=EPOCHS)
    assert "[cannot write the checkpoint at step" in one.log(0)
    assert not list(one.dir.glob("checkpoints/*step-*")), "nothing half written is left"


@trials
@pytest.mark.parametrize("how", each_nth(["changed", "short", "gone"], 3))
def test_gang_with_a_damaged_checkpoint_uses_the_one_before(saving: Build, how: str, trial: int) -> None:
    one = saving()
    one.run(3)
    trains(one, 2)
    until(lambda: len(manifests(one.dir)) > 1, "there are two checkpoints")
    for member in range(3):
        one.kill_learner(member)
    one.wait(FactKind.LOST)
    (folder, last), (_, before) = reversed(manifests(one.dir)[-2:])
    if how == "gone":
        (folder / STATE).unlink()
    else:
        with (folder / STATE).open("r+b") as file:
            file.truncate(last.bytes // 2) if how == "short" else os.pwrite(file.fileno(), b"\xff" * 9, last.bytes // 2)
    one.run(3)

    ends_whole(one, survivor=4, epochs=EPOCHS, uses_checkpoint=True)
    assert f"the checkpoint of step {last.step} is damaged; using the previous one" in one.log(3)
    assert one.facts(FactKind.GENERATION)[-1].step == before.step
