"""Stored files name no private module, carry a format, and are refused when a newer release wrote them."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jupyter_dlaas import stored
from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.pushed_objects import load_pushed, write_pushed
from tests.compatibility import programs
from tests.compatibility.kept import ARCHIVES, unpack
from tests.compatibility.scan import PUBLIC, names_in, private_names
from tests.learner.in_process import start

# Everything that this module's own functions are in is found by its name; a notebook's are not.
SPACE: dict[str, Any] = {"__name__": "__main__", "np": np, "torch": torch}
exec("double = lambda number: 2 * number", SPACE)
# Items of a list cannot be stored: marks stand in their places.
UNSTORABLE = programs.TORCH.replace("shadow = [], None", "shadow, rest = [], None, []").replace(
    "halves = [", "rest.append(n for n in ()); halves = ["
)


@pytest.fixture
def _quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "go").touch()


@pytest.mark.usefixtures("_quickly")
@pytest.mark.parametrize("source", [programs.PLAIN, programs.TORCH], ids=["plain", "torch"])
def test_checkpoints_and_results_name_no_private_module(tmp_path: Path, source: str) -> None:
    folder = tmp_path / "job"
    start(folder, source, stop_at=12)
    script = start(folder, source)
    assert script is not None
    wanted = [name for name in ("result", "scaled", "model", "optimizer", "by") if name in script]
    names, errors = results.store(folder / "results", wanted, script)
    checkpoint_files.take_end(folder, 0, {"end": {"epochs": 2}, "streams": {}})()

    assert (names, errors) == (wanted, {})
    assert private_names(folder) == {}
    assert {f"{PUBLIC}.{one}" for one in ("changes", "function", "fill_function")} <= public_names(folder)


@pytest.mark.usefixtures("_quickly")
def test_items_that_cannot_be_stored_name_no_private_module(tmp_path: Path) -> None:
    start(tmp_path / "job", UNSTORABLE, stop_at=12)

    assert private_names(tmp_path / "job") == {}
    assert {f"{PUBLIC}.{one}" for one in ("skipped", "memory", "typed_memory")} <= public_names(tmp_path / "job")


def public_names(folder: Path) -> set[str]:
    return {name for path in folder.rglob("*.bin") for name in names_in(path.read_bytes())}


def test_batches_of_exact_mode_name_no_private_module() -> None:
    exact = importlib.import_module("jupyter_dlaas.learner.exact.exact_step")
    data = results.dump([exact.Parts(4, [(1, "part", 2)])])
    [loaded] = results.load(data)

    assert names_in(data) == {f"{PUBLIC}.exact_batch"}
    assert (loaded.shards, loaded.own) == (4, {1: ("part", 2)})


def test_pushed_objects_name_no_private_module(tmp_path: Path) -> None:
    write_pushed(tmp_path / "pushed.bin", {"double": SPACE["double"], "model": torch.nn.Linear(2, 1)})

    assert names_in((tmp_path / "pushed.bin").read_bytes()) == {f"{PUBLIC}.function", f"{PUBLIC}.fill_function"}
    assert load_pushed(tmp_path / "pushed.bin", ["double"])(4) == 8


def test_each_public_name_leads_to_an_object() -> None:
    assert {*stored.LOADERS} <= {*stored.__all__}
    for module, name in {*stored.LOADERS.values(), *stored.FORMER.values()}:
        assert callable(getattr(importlib.import_module(module), name))


# -- what former releases wrote


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_every_private_name_in_a_former_pool_is_listed(archive: Path, tmp_path: Path) -> None:
    kept = unpack(archive, tmp_path)
    found = private_names(tmp_path)

    assert found.keys() <= {f"{module}.{name}" for module, name in stored.FORMER}
    assert kept.results.keys() == {"plain", "torch", "exact", "lightning", "keras", "sent"}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_former_checkpoints_and_results_load(archive: Path, tmp_path: Path) -> None:
    kept = unpack(archive, tmp_path)
    steps = {}
    for name in ("plain", "torch", "exact", "lightning", "keras"):
        found = checkpoint_files.load(kept.job_dir(kept.halted(name)), may_tidy=False)
        assert found is not None
        steps[name] = found[1]["position"].step
        assert steps[name] == found[0].step
    [graph] = (kept.pool / "jobs").glob("torch-*/results/model.bin")
    values = results.load_graph("model", graph.read_bytes())

    assert all(step > 6 for step in steps.values())
    assert checkpoint_files.load_end(kept.files, 0) == {"end": {"epochs": 2}, "streams": {}}
    assert {*results.names_in(graph.read_bytes())} == {"model", "optimizer"} == values.keys()
    assert values["optimizer"].param_groups[0]["params"][0] is values["model"][0].weight
    for path in (kept.pool / "jobs").glob("*/results/result.bin"):
        loaded = results.load(path.read_bytes())
        assert json.loads(json.dumps(loaded)) == kept.results[path.parents[1].name.rpartition("-")[0]]


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_former_pushed_objects_load(archive: Path, tmp_path: Path) -> None:
    kept = unpack(archive, tmp_path)
    path = kept.files / "pushed.bin"
    if not kept.is_of_this_python:
        with pytest.raises(
            TypeError, match=rf"was pickled by {kept.python}, but this is {sys.implementation.cache_tag}"
        ):
            load_pushed(path, ["model"])
        return
    model, optimizer, double = load_pushed(path, ["model", "optimizer", "double"])

    assert optimizer.param_groups[0]["params"][0] is model.weight
    assert (model.weight.tolist(), double(4)) == ([[3.0, 3.0]], 8)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_program_continues_from_its_former_checkpoint(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = unpack(archive, tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "go").touch()
    folder = kept.job_dir(kept.halted("torch"))
    source = (folder / "train.py").read_text()
    before = checkpoint_files.load(folder, may_tidy=False)
    resumed = start(folder, source, job=folder.name)
    untouched = start(tmp_path / "untouched", source, job=folder.name)

    assert before is not None
    assert resumed is not None
    assert untouched is not None
    assert private_names(tmp_path / "untouched") == {}
    assert before[0].step > 8
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line).get("step") for line in lines] == [8, 16, 24, 32]
    assert numbers_in(resumed["result"]) == pytest.approx(numbers_in(untouched["result"]), abs=1e-3)


def numbers_in(value: Any) -> list[float]:
    """All numbers of a result, in order."""
    if isinstance(value, dict):
        return numbers_in([*value.keys(), *value.values()])
    if isinstance(value, list):
        return [number for one in value for number in numbers_in(one)]
    return [] if isinstance(value, str) else [value]


# -- formats


def newer(data: bytes) -> bytes:
    """Return the same file as a later release would write it."""
    line, _, body = data.partition(b"\n")
    return json.dumps(json.loads(line) | {"format": 99}).encode() + b"\n" + body


def test_a_result_of_a_newer_format_is_refused() -> None:
    data = newer(results.dump([1, 2]))
    for read in (results.load, results.names_in, lambda found: results.load_graph("rows", found)):
        with pytest.raises(stored.FormatTooNew, match=r"result file has format 99.*up to 2.*pip install --upgrade"):
            read(data)


def test_pushed_objects_of_a_newer_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pushed.bin"
    write_pushed(path, {"rows": [1]})
    path.write_bytes(newer(path.read_bytes()))
    with pytest.raises(stored.FormatTooNew, match=rf"{path} has format 99.*up to 2.*pip install --upgrade"):
        load_pushed(path, ["rows"])


def test_training_end_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    checkpoint_files.take_end(tmp_path, 0, {"end": 1})()
    [path] = (tmp_path / "checkpoints").iterdir()
    whole = path.read_bytes()
    path.write_bytes(newer(whole))
    with pytest.raises(
        checkpoint_files.CheckpointTooNew, match=rf"{path} has format 99.*up to 2.*pip install --upgrade"
    ):
        checkpoint_files.load_end(tmp_path, 0)

    path.write_bytes(whole[:-1])
    assert checkpoint_files.load_end(tmp_path, 0) is None
    path.write_bytes(whole[:30])
    assert checkpoint_files.load_end(tmp_path, 0) is None
    path.write_bytes(whole)
    assert checkpoint_files.load_end(tmp_path, 0) == {"end": 1}
