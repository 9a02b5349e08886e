"""Learners that are halted before their training begins: while they prepare, and while they wait for each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from jupyter_dlaas.runtime.guardian.exit_status import read_result
from jupyter_dlaas.wire.journal import FactKind, is_retried
from tests.runtime.jobs import Job, until

Build = Callable[..., Job]

WAITS = """
import os, pathlib, sys, threading, time
import torch
import torch.distributed as dist
import jupyter_dlaas as dlaas

def report_once_blocked():
    before, here = None, ()
    while here != before:
        time.sleep(0.1)
        frame = sys._current_frames()[threading.main_thread().ident]
        before, here = here, (frame.f_code, frame.f_lasti)
    (pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output" / f"blocked-{os.environ['RANK']}").touch()

threading.Thread(target=report_once_blocked, daemon=True).start()
if os.environ["RANK"] == "1":
    time.sleep(600)
"""
RUN = """
model = torch.nn.Linear(2, 1)
dlaas.run().prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""
INTERRUPTED = """
import os, signal
from jupyter_dlaas.learner.process import main

prepare = main._prepare

def interrupted(*given):
    prepare(*given)
    os.kill(os.getpid(), signal.SIGTERM)

main._prepare = interrupted
main.main([{job!r}, "0"])
"""


@pytest.mark.parametrize(
    ("meet", "spec"),
    [(RUN, {}), (RUN, {"elastic": "off"}), ("dist.init_process_group('gloo')", {})],
    ids=["elastic", "fixed", "own group"],
)
def test_learners_waiting_for_each_other_end_at_a_halt(job: Build, meet: str, spec: dict[str, str]) -> None:
    one = job(WAITS + meet, framework="pytorch", **spec)
    one.run(2)
    until(lambda: one.output("blocked-0").exists() and one.output("blocked-1").exists(), one.report)

    one.halt()

    assert one.closed() == "halted"
    ends = one.facts(FactKind.LEARNER_DOWN)
    assert [(end.code, end.signal, end.failure) for end in ends] == [(0, None, None)] * 2, "SIGKILL after the grace"


def test_gang_whose_rendezvous_dies_is_retried(job: Build) -> None:
    one = job(WAITS + RUN, framework="pytorch")
    one.run(2)
    until(lambda: one.output("blocked-0").exists() and one.output("blocked-1").exists(), one.report)

    os.kill(json.loads((one.dir / "status.json").read_text())["store"]["pid"], signal.SIGKILL)

    lost = one.wait(FactKind.LOST)
    assert lost.failure is not None
    assert is_retried(lost.failure)


def test_sigterm_during_preparation_is_no_error(plain_job: Build) -> None:
    one = plain_job("print('runs')")
    (one.dir / "learner-0").mkdir()

    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(job=str(one.dir))], check=False, capture_output=True, text=True
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    result = read_result(one.dir, 0)
    assert result is not None
    assert result.outcome == "left"
