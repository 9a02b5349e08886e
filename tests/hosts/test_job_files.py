"""Files of jobs whose learners have private directories, and the settings of their guardians."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_dlaas.runtime.hosts.agent_settings import read_ending, read_lost, read_settings
from jupyter_dlaas.runtime.hosts.job_files import MetricsMerger, start_files
from jupyter_dlaas.wire.codec import encode
from jupyter_dlaas.wire.protocol import Cause, Failure


def log(job_dir: Path, member: int, text: str) -> None:
    folder = job_dir / f"learner-{member}"
    folder.mkdir(exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(text)


def merged(job_dir: Path) -> str:
    return (job_dir / "metrics.jsonl").read_text()


def test_metrics_of_a_new_rank_0_follow_the_former(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("former generation\n")
    merger = MetricsMerger(tmp_path)
    log(tmp_path, 3, "a\nb\nto")
    merger.merge(3, may_follow=True)
    log(tmp_path, 5, "d\n")
    merger.merge(5, may_follow=False)
    assert merged(tmp_path) == "former generation\na\nb\n"
    log(tmp_path, 3, "rn\n")
    merger.merge(3, may_follow=True)
    merger.merge(5, may_follow=True)
    log(tmp_path, 3, "too late\n")
    merger.merge(3, may_follow=True)
    assert merged(tmp_path) == "former generation\na\nb\ntorn\nd\n"
    assert merger.writer == 5


def test_a_new_guardian_continues_metrics_at_any_byte(tmp_path: Path) -> None:
    log(tmp_path, 0, "first\nsecond\n")
    MetricsMerger(tmp_path).merge(0, may_follow=True)
    whole = merged(tmp_path)
    for size in range(len(whole) + 1):  # the former guardian was killed after so many bytes
        (tmp_path / "metrics.jsonl").write_text(whole[:size])
        MetricsMerger(tmp_path).merge(0, may_follow=False)
        assert merged(tmp_path) == whole


def test_learners_get_program_and_state_but_no_foreign_files(tmp_path: Path) -> None:
    for name in ("spec.json", "train.py", "wanted.json", "environment.json", "metrics.jsonl"):
        (tmp_path / name).touch()
    for name in ("files/a/b.py", "inputs/x.bin", "checkpoints/step-1/state.bin", "checkpoints/.part-1/state.bin"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "files/link").symlink_to("/etc/passwd")

    joiner = {"spec.json", "train.py", "files/a/b.py", "inputs/x.bin"}
    assert set(start_files(tmp_path, joins=True)) == joiner
    assert set(start_files(tmp_path, joins=False)) == joiner | {"metrics.jsonl", "checkpoints/step-1/state.bin"}


def test_settings_state_an_address_for_learners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_bytes(b"x" * 32)
    assert read_settings(tmp_path) is None

    def write(**fields: object) -> None:
        (tmp_path / "agents.json").write_text(json.dumps({"token_file": str(token), **fields}))

    write(listen="127.0.5.1:7000")
    found = read_settings(tmp_path)
    assert found is not None
    assert found.own_address == "127.0.5.1"
    write(listen="*:7000")
    with pytest.raises(ValueError, match="DLAAS_GUARDIAN_ADDRESS"):
        read_settings(tmp_path)
    monkeypatch.setenv("DLAAS_GUARDIAN_ADDRESS", "10.0.0.7")
    found = read_settings(tmp_path)
    assert found is not None
    assert found.own_address == "10.0.0.7"
    token.unlink()
    with pytest.raises(ValueError, match=r"token file .* does not exist"):
        read_settings(tmp_path)
    write(listen="7000")
    with pytest.raises(ValueError, match="not a valid address"):
        read_settings(tmp_path)


def test_lost_members_are_read_with_their_reasons(tmp_path: Path) -> None:
    assert read_lost(tmp_path) == {}
    (tmp_path / "lost.json").write_text('{"members": {"3": "evicted", "x": "?"}}')
    assert {member: failure.what for member, failure in read_lost(tmp_path).items()} == {3: "evicted"}
    known = Failure(cause=Cause.EVICTED, code="evicted", what="Node n1 evicted pod ml/a-1-m4.", advice="Wait.")
    (tmp_path / "lost.json").write_text(json.dumps({"members": {"4": encode(known)}}))
    assert (read_lost(tmp_path), read_ending(tmp_path)) == ({4: known}, {})
    (tmp_path / "lost.json").write_text(json.dumps({"ending": {"4": encode(known)}}))
    assert (read_lost(tmp_path), read_ending(tmp_path)) == ({}, {4: known})
