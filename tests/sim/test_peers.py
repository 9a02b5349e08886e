"""Tables of others' schedulers: what their own simulators gave, our replay of it, and our core."""

from __future__ import annotations

import pytest

from dlaas_server.sim.__main__ import main
from dlaas_server.sim.experiments import peers


def test_tiresias_on_philly_is_one_command_and_every_rule_comes_out_as_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tiresias"]) == 0

    lines = capsys.readouterr().out.splitlines()
    measured = [line.split()[2:] for line in lines if ", measured" in line]
    replayed = [line.split()[1:] for line in lines if "replayed" in line]
    assert len(measured) == 9
    assert replayed == measured
    assert lines[-1].startswith("core: shortest")


def test_pollux_workloads_are_one_command_and_others_rules_come_out_as_published(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "WORKLOADS", (6,))

    assert main(["pollux"]) == 0
    said = capsys.readouterr().out
    assert "3,470 / 3,470 s" in said
    assert "5,302 / 5,302 s" in said
