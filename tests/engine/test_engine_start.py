"""Start of the engine's process."""

from __future__ import annotations

import gc

import pytest

from dlaas_server.engine import service
from dlaas_server.engine.__main__ import main


def test_objects_of_the_imports_are_not_searched_for_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(service, "main", lambda argv: seen.append((argv, gc.isenabled(), gc.get_freeze_count() > 0)))
    try:
        main(["--idle-s", "1"])
    finally:
        gc.unfreeze()

    assert seen == [(["--idle-s", "1"], True, True)]
