"""Secrets: which variables hold one, and that nothing that is kept or shown holds their values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlaas_server.pools.local.job_folder import JobFolder
from jupyter_dlaas.jobdir.journal_file import Journal
from jupyter_dlaas.jobdir.log_index import LOG, LogMask
from jupyter_dlaas.runtime.spawn.launch import Order, guardian_environment, learner_environment
from jupyter_dlaas.runtime.zygote import start_guardian
from jupyter_dlaas.wire.journal import GenerationLost, MemberWanted
from jupyter_dlaas.wire.protocol import Cause, Failure, JobSpec, Where
from jupyter_dlaas.wire.secret_masking import SECRETS, is_secret, mask_of, secret_values, without_secrets

SECRET = "hf_canary0123"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", SECRET),
        ("HUGGING_FACE_HUB_TOKEN", SECRET),
        ("AWS_SECRET_ACCESS_KEY", "/abcDEF+0123456789/abcdefghijklmnopqrstu"),
        ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"),
        ("WANDB_API_KEY", "0123456789abcdef"),
        ("PGPASSWORD", "123456"),
        ("KAGGLE_KEY", "0a1b2c3d4e"),
        ("db_password", "correct horse"),
        ("GITHUB_PAT", "ghp_0123456789"),
    ],
)
def test_variables_that_look_secret(name: str, value: str) -> None:
    assert is_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "disabled"),
        ("MAX_TOKEN", "131072"),
        ("TOKEN_LIMIT", "10000000"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/ana/key-1.json"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token-1"),
        ("SSH_AUTH_SOCK", "/tmp/ssh-1/agent.12"),
        ("PWD", "/home/ana/work1"),
        ("SORT_KEY", "username"),
        ("USE_TOKEN", "true"),
        ("API_TOKEN", "short"),
        (SECRETS, "HF_TOKEN,WANDB_API_KEY"),
    ],
)
def test_ordinary_variables_are_no_secrets(name: str, value: str) -> None:
    assert not is_secret(name, value)


def test_named_variables_and_passwords_in_urls_are_secrets() -> None:
    environment = {"CODE": "4711", SECRETS: "CODE", "DB": "postgres://ana:s3cret-word@db/x", "SITE": "https://a.org/b"}

    assert secret_values(environment) == ["4711", "s3cret-word"]
    assert without_secrets(environment) == {SECRETS: "CODE", "SITE": "https://a.org/b"}


def test_mask_covers_escaped_and_multi_line_forms() -> None:
    mask = mask_of({"A_TOKEN": 'quote"back\\slash', "PRIVATE_KEY": "-----BEGIN-----\nabcdefgh1234\n"})

    for text in (r"quote\"back\\slash", "quote%22back%5Cslash", "| abcdefgh1234 |", 'quote"back\\slash'):
        masked = mask.text(text)
        assert len(masked) == len(text)
        assert set(masked) <= set("*| ")
    assert mask.data(b"x abcdefgh1234 y") == b"x ************ y"


def test_journal_holds_no_secret_but_keeps_codes(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", mask=mask_of({"TOKEN": SECRET, "PASSWORD": "your_code"}))
    where = Where(label=f"cell {SECRET}", line=1, source=(f"x = '{SECRET}'",))
    failure = Failure(
        cause=Cause.YOUR_CODE, code="your_code", what=SECRET, advice="See.", where=where, traceback=f"a\n{SECRET}"
    )

    fact = journal.append(GenerationLost(failure=failure))

    text = (tmp_path / "journal.jsonl").read_text()
    assert SECRET not in text
    assert text.count("*" * len(SECRET)) == 4
    assert isinstance(fact, GenerationLost)
    assert fact.failure is not None
    assert fact.failure.cause is Cause.YOUR_CODE


def test_guardian_masks_a_log_in_place_also_in_two_pieces(tmp_path: Path) -> None:
    log = tmp_path / LOG
    masked = LogMask(tmp_path, mask_of({"TOKEN": SECRET}))
    log.write_bytes(f"a {SECRET} b {SECRET[:5]}".encode())
    masked.look()
    with log.open("ab") as file:
        file.write(f"{SECRET[5:]} c\n".encode())
    masked.look()

    stars = "*" * len(SECRET)
    assert log.read_text() == f"a {stars} b {stars} c\n"


def test_readers_never_see_a_part_of_a_secret(tmp_path: Path) -> None:
    folder = JobFolder("a-1", tmp_path / "a-1")
    folder.create("me", JobSpec(), {"TOKEN": SECRET})
    log = folder.root / "learner-0" / LOG
    log.parent.mkdir()
    text = f"first {SECRET} second {SECRET}\nlast {SECRET[:6]}"
    log.write_text(text)
    mask = mask_of(folder.environment())

    whole = folder.read("log:0", 0, 1000, mask=mask).data
    pieces = b"".join(folder.read("log:0", at, 3, mask=mask).data for at in range(0, len(text), 3))
    live = folder.read("log:0", 0, 1000, mask=mask, is_live=True)

    assert SECRET.encode() not in whole
    assert len(whole) == len(text)
    assert pieces == whole
    assert live.data == whole[:-6], "the rest of it may be about to come"
    assert (live.end, live.size) == (len(text) - 6, len(text))


def test_zygotes_and_guardians_get_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Order] = []

    def spawn(order: Order, **_: object) -> int:
        started.append(order)
        return os.getpid()

    monkeypatch.setattr(start_guardian, "spawn", spawn)
    environment = {"PATH": os.environ["PATH"], "HF_TOKEN": SECRET, "CODE": "4711", SECRETS: "CODE"}

    start_guardian.warm(interpreter="python", package_dir=tmp_path, environment=environment, zygote_dir=tmp_path)

    (zygote,) = started
    guardian = guardian_environment(environment, "/job", "/package")
    for kept in (zygote.environment, guardian):
        assert kept["PATH"]
        assert not {SECRET, "4711"} & set(kept.values())


def test_learners_get_the_secrets_and_their_names() -> None:
    found = learner_environment(
        {"CODE": "4711", SECRETS: "CODE"},
        job="a-1",
        generation=1,
        members=(MemberWanted(member=0, node="n"),),
        rank=0,
        store=None,
    )

    assert (found["CODE"], found[SECRETS]) == ("4711", "CODE")
