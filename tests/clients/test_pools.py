"""Pools chosen by name: a mistyped name creates none and is answered with the pools that exist."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import jupyter_dlaas as dlaas
from jupyter_dlaas.cli import main, parser, pool_selection
from jupyter_dlaas.client import discovery
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.codec import Invalid
from tests.clients.conftest import FakePool, end, fake_command, make_pool, start_server, stop_server
from tests.clients.test_server import ask

CREATE = "To create it: jupyter dlaas pool use local --pool"


@pytest.fixture
def pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a user's pools, with the pool `cluster` in it. No engine can start."""
    for name in ("JPY_PARENT_PID", "JUPYTER_DLAAS_POOL", "JUPYTER_DLAAS_POOL_DIR", "DLAAS_JOB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(discovery, "engine_command", lambda endpoint: ["false"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("x = 1\n")
    folder = tmp_path / "data" / "dlaas"
    (folder / "cluster").mkdir(parents=True)
    (folder / "cluster" / "config.toml").touch()
    return folder


@pytest.fixture
def named(pools: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePool]:
    """Return the pool `lab`, which the fake engine serves."""
    monkeypatch.setattr(discovery, "engine_command", fake_command)
    made = make_pool(pools / "lab")
    yield made
    end(made)


@pytest.mark.parametrize("verb", sorted(set(parser.VERBS) - {"check", "k8s"}))
def test_no_verb_creates_a_pool_by_a_mistyped_name(verb: str, pools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pool"] if verb == "pool" else shlex.split(parser.VERBS[verb].example.partition(" > ")[0])

    assert main.main([*words, "--pool", "clster"]) == 2

    said = "there is no pool 'clster'. Did you mean 'cluster'? Your pools: cluster, local."
    assert capsys.readouterr().err == f"dlaas: {said} {CREATE} clster\n"
    assert [path.name for path in pools.iterdir()] == ["cluster"]


def test_no_pool_is_created_by_a_mistyped_variable(pools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DLAAS_POOL", "locl")

    for request in (dlaas.pool, dlaas.jobs, lambda: dlaas.job("a-1"), lambda: dlaas.submit("train.py")):
        with pytest.raises(Invalid, match=r"no pool 'locl', which JUPYTER_DLAAS_POOL names\. Did you mean 'local'\?"):
            request()
    assert not (pools / "locl").exists()


def test_a_mistyped_directory_creates_no_pool(pools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "scratch" / "second"
    own.mkdir(parents=True)
    (own / "engine.log").touch()

    assert main.main(["jobs", "--pool", "./scratch/secnd/"]) == 2
    assert main.main(["jobs", "--pool", "./scratch/"]) == 2

    folder = tmp_path / "scratch"
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"dlaas: there is no pool in {folder}/secnd. Did you mean {own}/? {CREATE} {folder}/secnd/"
    assert second.startswith(f"dlaas: {folder} holds no pool but other files. To create one below: ")
    assert [path.name for path in folder.iterdir()] == ["second"]


def test_a_name_that_is_a_directory_here_is_pointed_to(pools: Path, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "config.toml").touch()

    with pytest.raises(Invalid, match=r"in the directory second, use --pool \./second/"):
        Client("second").jobs()


def test_pool_use_creates_a_pool_by_its_name(pools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = parser.build().parse_args(["pool", "use", "local", "--pool", "second"])

    assert pool_selection.use(options) == 0
    assert discovery.existing_pool("second") == pools / "second"
    assert capsys.readouterr().err == f"Created the pool in {pools / 'second'}.\n"
    with pytest.raises(Invalid, match="holds other files; a pool needs a directory of its own"):
        pool_selection.use(parser.build().parse_args(["pool", "use", "local", "--pool", f"{tmp_path}/"]))


def test_existing_and_default_pools_start_their_engine(named: FakePool, pools: Path) -> None:
    assert Client("lab").pool().name == "lab"
    assert discovery.pool_endpoint("local").named_by is None
    assert discovery.pool_endpoint().named_by is None
    (pools / "empty").mkdir()
    assert discovery.existing_pool("empty") == pools / "empty"


def test_a_directory_in_the_variable_is_created_on_use(
    pools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DLAAS_POOL_DIR", str(tmp_path / "disk" / "pool"))
    monkeypatch.setenv("JUPYTER_DLAAS_POOL", "locl")

    assert discovery.existing_pool() == tmp_path / "disk" / "pool"
    assert discovery.pool_endpoint().named_by is None


def test_server_of_a_mistyped_pool_answers_with_the_pools(tmp_path: Path) -> None:
    made = make_pool(tmp_path / "pool")
    server = start_server(tmp_path / "server", made, "--DlaasExtension.pool=locl")
    try:
        status, _, body = ask(server, "dlaas/pool")
        said = "there is no pool 'locl', which DlaasExtension.pool names. Did you mean 'local'?"
        assert (status, json.loads(body)["error"]["code"]) == (400, "invalid")
        assert json.loads(body)["error"]["message"].startswith(said)
        assert not list((tmp_path / "server" / "data").rglob("locl"))
    finally:
        stop_server(server)
        end(made)
