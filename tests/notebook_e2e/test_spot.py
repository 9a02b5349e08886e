"""`%%train --spot`: what is typed reaches the job, and nothing that was not typed does."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_dlaas.api import submission
from jupyter_dlaas.kernel.magics import _loaded, _parser
from jupyter_dlaas.kernel.options import parse
from tests.notebook_e2e.shells import shell as new_shell


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DLAAS_POOL_DIR", str(tmp_path / "pool"))
    monkeypatch.setenv("JUPYTER_DLAAS_WARM", "0")
    monkeypatch.chdir(tmp_path)


def test_spot_jobs_are_explicit() -> None:
    with new_shell() as one:
        parser = _parser(_loaded[one].train)
        spot, ordinary = (parse(parser, line).options for line in ("night --gpus 1:4 --spot", "night"))

    assert spot == {"name": "night", "gpus": "1:4", "spot": True}
    assert ordinary == {"name": "night"}
    assert submission.prepare("print(1)\n", **spot).submit.spec.spot
    assert not submission.prepare("print(1)\n", **ordinary).submit.spec.spot
