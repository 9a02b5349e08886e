"""Tables of others' schedulers: what their own simulators gave, our replay of it, and our core."""

from __future__ import annotations

import pytest

from dlaas_server.sim.__main__ import main
from dlaas_server.sim.experiments import peers


def test_command_reproduces_tiresias_on_philly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tiresias"]) == 0

    lines = capsys.readouterr().out.splitlines()
    measured = [line.split()[2:] for line in lines if ", measured" in line]
    replayed = [line.split()[1:] for line in lines if "replayed" in line]
    assert len(measured) == 9
    assert replayed == measured
    assert lines[-1].startswith("core: shortest")


def test_command_reproduces_pollux_workloads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "WORKLOADS", (6,))

    assert main(["pollux"]) == 0
    said = capsys.readouterr().out
    assert "3,470 / 3,470 s" in said
    assert "5,302 / 5,302 s" in said
