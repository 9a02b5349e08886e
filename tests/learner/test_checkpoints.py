"""Checkpoints on disk: what is kept, damage, formats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.jobdir.checkpoint_manifest import manifests
from jupyter_dlaas.jobdir.journal_file import Journal
from jupyter_dlaas.learner.autolog.safe_callbacks import attempt
from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.learner.data.position import Position
from jupyter_dlaas.wire.journal import CheckpointSaved


def save(folder: Path, step: int, **content: Any) -> None:
    checkpoint_files.take(folder, Position(step=step), content, generation=1, learners=1, trained=())()


def test_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    for step, value in ((1, "a"), (2, "b"), (3, "c"), (3, "d")):
        save(tmp_path, step, value=value)
    loaded = checkpoint_files.load(tmp_path, may_tidy=True)

    assert [manifest.step for _, manifest in manifests(tmp_path)] == [3, 3]
    assert loaded is not None
    assert loaded[1]["value"] == "d"


def save_with_file(folder: Path, step: int, **content: Any) -> None:
    """Save as a framework's own loop does, which puts files beside the state."""

    def add(part: Path) -> dict[str, Any]:
        (part / "own").write_text("weights")
        return {}

    checkpoint_files.take(folder, Position(step=step), content, generation=1, learners=1, trained=(), add=add)()


@pytest.mark.parametrize("damage", ["state", "manifest", "both", "file", "no file"])
def test_any_damage_leads_to_the_checkpoint_before(tmp_path: Path, damage: str) -> None:
    save_with_file(tmp_path, 1, value="a")
    save_with_file(tmp_path, 2, value="b")
    folder = manifests(tmp_path)[-1][0]
    if damage in ("state", "both"):
        (folder / "state.bin").write_bytes((folder / "state.bin").read_bytes()[:-1])
    if damage in ("manifest", "both"):
        (folder / "manifest.json").write_text('{"step": 2')
    if damage == "file":
        (folder / "own").write_text("weight")
    if damage == "no file":
        (folder / "own").unlink()
    loaded = checkpoint_files.load(tmp_path, may_tidy=True)

    assert loaded is not None
    assert loaded[1]["value"] == "a"
    assert [manifest.step for _, manifest in manifests(tmp_path)] == [1]


def test_loading_fails_where_all_checkpoints_are_damaged(tmp_path: Path) -> None:
    assert checkpoint_files.load(tmp_path, may_tidy=True) is None
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / "step-0000000001" / "manifest.json").write_text("{")
    (tmp_path / "checkpoints" / "step-0000000002" / "state.bin").write_bytes(b"")
    for _ in range(2):  # a second try finds them as the first one did
        with pytest.raises(checkpoint_files.CheckpointsDamaged, match=r"are damaged \(step 1, 2\)$"):
            checkpoint_files.load(tmp_path, may_tidy=True)


def test_loading_fails_where_checkpoints_of_the_journal_are_gone(tmp_path: Path) -> None:
    save(tmp_path, 7)
    Journal(tmp_path / "journal.jsonl").append(CheckpointSaved(generation=1, step=7))
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(checkpoint_files.CheckpointsDamaged, match="the last one was of step 7"):
        checkpoint_files.load(tmp_path, may_tidy=True)


def test_checkpoint_formats_former_loads_and_newer_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1, value="a")
    path = tmp_path / "checkpoints" / "step-0000000001" / "manifest.json"
    body = json.loads(path.read_text())
    assert body.pop("format") == 2
    path.write_text(json.dumps(body))
    loaded = checkpoint_files.load(tmp_path, may_tidy=True)
    assert loaded is not None
    assert loaded[1]["value"] == "a"

    path.write_text(json.dumps({"format": 3, "shards": []}))
    with pytest.raises(
        checkpoint_files.CheckpointTooNew, match=rf"{path.parent} has format 3.*formats up to 2.*pip install --upgrade"
    ):
        attempt(lambda: checkpoint_files.load(tmp_path, may_tidy=True))  # nor is it passed over as an error of ours
    assert path.exists()


def test_a_checkpoint_that_the_disk_refuses_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, value="a")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_files, "write_whole", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2, value="b")

    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000000001"]
