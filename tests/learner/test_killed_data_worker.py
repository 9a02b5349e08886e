"""A data worker that is killed while its learner exchanges gradients is named in a report."""

from __future__ import annotations

import types
from typing import Any

import pytest

from jupyter_dlaas.learner.elastic.data_parallel import Gang
from jupyter_dlaas.learner.training_run import training_loop


def gang_that_lost(error: Exception) -> Any:
    """Return a gang whose collective raised this error."""
    gang: Any = types.SimpleNamespace(killed_worker="", _gate=types.SimpleNamespace(fail=lambda: None))
    gang._note_killed_worker = types.MethodType(Gang._note_killed_worker, gang)
    try:
        raise error
    except RuntimeError:
        Gang.lost(gang)
    return gang


def uncounted(gang: Any) -> Any:
    """Return a run that has undone a step because of this gang's loss."""
    none = types.SimpleNamespace(undo=lambda: None, step=lambda *_: None)
    run: Any = types.SimpleNamespace(gang=gang, rank=1, epoch=0, step=3, trained=none, meter=none)
    training_loop.uncount(run, 8)
    return run


def test_killed_data_worker_is_named_once(capfd: pytest.CaptureFixture[str]) -> None:
    gang = gang_that_lost(RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed."))
    assert uncounted(gang).step == 2
    uncounted(gang)
    found = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[")]
    assert len(found) == 1
    assert "Learner 1 lost a data worker" in found[0]
    assert "pid 4711" in found[0]


def test_lost_connection_names_no_data_worker(capfd: pytest.CaptureFixture[str]) -> None:
    uncounted(gang_that_lost(RuntimeError("Connection closed by peer")))
    assert "data worker" not in capfd.readouterr().err
