"""Verbs that follow a job which waits, or which is halted."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.clients.conftest import FakePool
from tests.clients.test_cli import run, start


@pytest.mark.parametrize(
    ("words", "code"), [(["attach", "fake-1"], 6), (["submit", "train.py", "--wait"], 6), (["logs", "fake-1", "-f"], 0)]
)
def test_following_ends_at_a_halt_and_names_the_resume(
    words: list[str],
    code: int,
    pool: FakePool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("x = 1\n")
    pool.write_log("one\n")
    pool.set_view(state="HALTED", status_line="by you at step 5")

    got, out, err = run(capsys, *words)

    assert (got, out) == (code, "L0  one\n")
    assert "fake-1 was halted by you at step 5. To resume it: jupyter dlaas resume fake-1\n" in err


def test_attach_ends_when_the_job_is_halted_meanwhile(pool: FakePool) -> None:
    pool.write_log("one\n")
    with start(pool, "attach", "fake-1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "L0  one\n"
        pool.set_view(state="HALTED")
        _out, err = process.communicate(timeout=30)

    assert process.returncode == 6
    assert err.endswith("dlaas: fake-1 was halted. To resume it: jupyter dlaas resume fake-1\n")


@pytest.mark.parametrize("words", [["attach", "fake-1"], ["logs", "fake-1", "-f"]])
def test_followed_job_that_waits_says_why(words: list[str], pool: FakePool) -> None:
    why = "needs 2 learners at once; 1 fits now"
    pool.set_view(state="QUEUED", state_label="Queued", reason=why)
    with start(pool, *words) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("fake-1  Queued  ")
        assert process.stderr.readline() == f"  {why}\n"
        pool.set_view(state="COMPLETED")
        process.communicate(timeout=30)

    assert process.returncode == 0


def test_empty_log_of_a_waiting_job_says_why(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    pool.set_view(state="QUEUED", state_label="Queued", reason="1st in the queue")

    code, out, err = run(capsys, "logs", "fake-1")

    assert (code, out) == (0, "")
    assert err.startswith("The log is empty.\nfake-1  Queued  ")
    assert "\n  1st in the queue\n" in err


def test_interrupt_leaves_a_waiting_job_in_the_queue(pool: FakePool) -> None:
    pool.set_view(state="QUEUED", state_label="Queued", reason="1st in the queue")
    with start(pool, "attach", "fake-1") as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "Detached: fake-1 stays in the queue. To follow it: jupyter dlaas attach fake-1\n" in err
