"""All processes of a job order sets of strings alike: learners, restarts and workers, forked or started plainly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from jupyter_dlaas.runtime.system.hash_seed import DEFAULT, hash_seed_of
from jupyter_dlaas.runtime.zygote.start_guardian import reap, stop_zygotes, warm, zygote_path
from tests.runtime.jobs import Job, until

Build = Callable[..., Job]
OWN_SEED = "from jupyter_dlaas.runtime.system.hash_seed import own_hash_seed; import os; {}print(own_hash_seed())"
ORDER = "'|'.join({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'})"
SOURCE = f"""
import multiprocessing, os, subprocess, sys
def order():
    return {ORDER}
if __name__ == "__main__":
    worker = subprocess.run([sys.executable, "-c", "print({ORDER})"], capture_output=True, text=True).stdout.strip()
    with open(os.environ["DLAAS_JOB_DIR"] + "/output/orders", "a") as file:
        print(order(), worker, file=file)
"""


@pytest.fixture
def zygotes(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "zygotes"
    folder.mkdir()
    yield folder
    stop_zygotes(folder)
    until(lambda: reap() is not None and not any(folder.glob("*.sock")), "the zygotes are gone")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, DEFAULT),
        ({"PYTHONHASHSEED": "7"}, "7"),
        ({"PYTHONHASHSEED": "007"}, "7"),
        ({"PYTHONHASHSEED": "random"}, DEFAULT),
        ({"PYTHONHASHSEED": ""}, DEFAULT),
        ({"PYTHONHASHSEED": "-1"}, DEFAULT),  # Python would not even start
        ({"PYTHONHASHSEED": str(2**32)}, DEFAULT),
    ],
)
def test_the_seed_of_an_environment_is_one_that_python_takes(environment: dict[str, str], expected: str) -> None:
    assert hash_seed_of(environment) == expected


@pytest.mark.parametrize(
    ("started_with", "before", "options", "expected"),
    [
        ("7", "", (), "7"),
        (None, "", (), "None"),
        ("random", "", (), "None"),
        ("0", "", (), "0"),
        (None, "os.environ['PYTHONHASHSEED'] = '42'; ", (), "None"),  # as `seed_everything` of many notebooks does
        ("7", "os.environ['PYTHONHASHSEED'] = '42'; ", (), "7"),
        ("7", "", ("-E",), "None"),
    ],
)
def test_own_seed_is_the_one_that_python_started_with(
    started_with: str | None, before: str, options: tuple[str, ...], expected: str
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
    environment |= {"PYTHONHASHSEED": started_with} if started_with is not None else {}
    root = Path(__file__).parents[2]

    ran = subprocess.run(
        [sys.executable, *options, "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {OWN_SEED.format(before)}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.strip() == expected


def test_warm_and_plain_learners_and_their_workers_have_one_order(job: Build, zygotes: Path) -> None:
    orders, how = set(), set()
    for is_warm in (True, False):
        one = job(SOURCE)
        if is_warm:
            one.zygote_dir = zygotes
            until(partial(_warm, one, zygotes), "the zygote is ready")
        one.run(2 if is_warm else 1)
        assert one.closed() == "completed"
        assert one.guardian is not None
        how.add(one.guardian.how)
        orders |= {order for line in one.lines("orders") for order in line.split()}

    assert how == {"zygote", "plain"}
    assert len(orders) == 1


def test_learners_use_the_hash_seed_of_the_environment(job: Build) -> None:
    one = job(SOURCE, environment={"PYTHONHASHSEED": "7"})
    one.run()

    plain = subprocess.run(
        [sys.executable, "-c", f"print({ORDER})"],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert one.closed() == "completed"
    assert one.lines("orders") == [f"{plain.stdout.strip()} {plain.stdout.strip()}"]


def test_a_zygote_serves_the_environments_of_its_hash_seed_only(tmp_path: Path) -> None:
    paths = {
        json.dumps(environment): zygote_path(tmp_path, "python", tmp_path, environment, "lean")
        for environment in ({}, {"PYTHONHASHSEED": DEFAULT}, {"PYTHONHASHSEED": "7"})
    }

    assert len(set(paths.values())) == 2
    assert paths["{}"] == paths[json.dumps({"PYTHONHASHSEED": DEFAULT})]


def _warm(one: Job, zygotes: Path) -> bool:
    return warm(
        interpreter=one.interpreter,
        package_dir=one.package_dir,
        environment=one.environment,
        zygote_dir=zygotes,
        framework=None,
    )
