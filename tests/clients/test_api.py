"""Plain Python: submit, Job, and functions as jobs."""

from __future__ import annotations

import builtins
import errno
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import jupyter_dlaas
from jupyter_dlaas.api import jobs, submission
from jupyter_dlaas.api import jobs as dlaas
from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.protocol import NotAllowed
from tests.clients.conftest import ROOT, WIRE, FakePool
from tests.notebook_e2e.shells import refusal, run, shell


def test_importing_the_package_loads_nothing_else() -> None:
    code = (
        "import sys, jupyter_dlaas\n"
        "assert not [m for m in sys.modules if m.startswith('jupyter_dlaas.')]\n"
        "import jupyter_dlaas.api.jobs\n"
        "print([m for m in ('tornado', 'torch', 'ipywidgets', 'jupyter_core', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_source_text_is_submitted_as_it_stands(pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = dlaas.submit("import torch\nprint(1)\n", name="mine", gpus=2, env={"A": "b"})

    sent = json.loads((pool.fake / "submit.json").read_text())
    assert job.id == "fake-1"
    assert (sent["source"], sent["spec"]["name"], sent["spec"]["learners_max"]) == (
        "import torch\nprint(1)\n",
        "mine",
        2,
    )
    assert sent["files"] == []


def test_large_and_binary_files_travel_as_blobs(
    pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"\x80\x00" * 1000)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("a,b\n")
    (tmp_path / "data" / ".hidden").write_text("x")

    dlaas.submit("x = 1\n", include=["weights.bin", "data"])

    sent = json.loads((pool.fake / "submit.json").read_text())
    named = {one["path"]: one["sha256"] for one in sent["files"]}
    assert set(named) == {"files/weights.bin", "files/data/rows.csv"}
    put = [one["uri"] for one in pool.asked() if one["method"] == "PUT"]
    assert put == [f"/dlaas/blobs/{named['files/weights.bin']}"]


def test_repeating_a_submit_keeps_its_key(pool: FakePool) -> None:
    prepared = submission.prepare("x = 1\n")
    (pool.fake / "die").touch()
    prepared.send(pool.client)

    assert json.loads((pool.fake / "submit.json").read_text())["key"] == prepared.submit.key


def test_waiting_ends_with_the_job(pool: FakePool) -> None:
    job = dlaas.job("fake")
    with pytest.raises(TimeoutError, match=r"fake-1 is still PROCESSING after 0.2 s; it keeps running"):
        job.wait(0.2)
    threading.Timer(0.2, lambda: pool.set_view(state="COMPLETED")).start()

    assert job.wait(20) is job
    assert job.status == "COMPLETED"


def test_waiting_outlives_the_engine(pool: FakePool) -> None:
    job = dlaas.job("fake")

    def meanwhile() -> None:
        pool.kill()
        pool.set_view(state="COMPLETED")

    threading.Timer(0.2, meanwhile).start()
    assert job.wait(20).last_view.state == "COMPLETED"


def test_failure_is_raised_with_cause_place_and_advice(pool: FakePool) -> None:
    failed = json.loads((WIRE / "job_failed.json").read_text())
    pool.set_view(**{key: failed[key] for key in ("state", "failure")})
    job = dlaas.job("fake")

    with pytest.raises(dlaas.JobFailed) as raised:
        job.wait()
    what, where, *_source, advice = str(raised.value).splitlines()
    assert what.endswith(failed["failure"]["what"])
    assert where.startswith(f"Where: {failed['failure']['where']['label']}, line ")
    assert advice == f"What to do: {failed['failure']['advice']}"
    assert job.wait(raise_on_failure=False) is job


def test_docstring_of_submit_names_every_option() -> None:
    named = set(re.findall(r"`(\w+)[`=]", dlaas.submit.__doc__ or ""))

    assert set(inspect.signature(dlaas.submit).parameters) - {"source"} - named == set()


def test_errors_that_public_docstrings_name_are_public() -> None:
    documented = [dlaas.submit, dlaas.train, dlaas.job, dlaas.jobs, dlaas.pool, dlaas.result, *vars(dlaas.Job).values()]
    texts = " ".join(" ".join((one.__doc__ or "").split()) for one in documented if callable(one))
    named = {name for part in re.findall(r"[Rr]aises? ([^.;]*)", texts) for name in re.findall(r"\b[A-Z]\w+", part)}

    public = {*jupyter_dlaas.__all__}
    assert {"Invalid", "JobFailed", "NotFound", "NotAllowed", "NotRestored"} <= named
    assert {name for name in named if not hasattr(builtins, name)} <= public
    assert all(issubclass(getattr(jupyter_dlaas, name), jupyter_dlaas.DlaasError) for name in named & public)


def test_results_are_there_when_the_job_has_completed(pool: FakePool) -> None:
    with pytest.raises(NotAllowed, match=r"fake-1 is PROCESSING; results are available after it completes"):
        dlaas.job("fake").result()


def test_job_repr_describes_it(pool: FakePool) -> None:
    pool.write_log("a\nb\n")
    job = dlaas.job("fake")

    assert repr(job).startswith("<Job fake-1 PROCESSING")
    assert job.logs() == "L0  a\nL0  b\n"
    assert job.logs(member=0) == "a\nb\n"
    assert job.why().startswith("fake-1 is 2nd of 5.")
    assert job.source() == "print('hello')\n"
    assert job.metrics() == []
    assert [one.id for one in dlaas.jobs()] == ["fake-1"]
    assert dlaas.pool().name == "lab"


SCRIPT = """
import json, sys
import jupyter_dlaas as dlaas
import beside

@dlaas.train(gpus="1:2", outputs="returned")
def fit(epochs, lr=0.1):
    print("trained", epochs, lr, beside.X)
    return epochs

if __name__ == "__main__":
    print(fit(3, lr=0.5))
"""


def run_job(pool: FakePool, where: Path) -> subprocess.CompletedProcess[str]:
    """Run a submitted program as a job does: files/ first on the path, train.py as the program."""
    sent = json.loads((pool.fake / "submit.json").read_text())
    for one in sent["files"]:
        path = where / one["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one["text"])
    (where / "train.py").write_text(sent["source"])
    paths = os.pathsep.join([str(where / "files"), str(ROOT)])
    environment = {**os.environ, "DLAAS_JOB": "fit-1", "PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, "train.py"], cwd=where, env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_decorated_function_is_submitted_and_runs_in_the_job(pool: FakePool, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("X = 'own module'\n")
    pool.client.pool()
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("<Job fake-1 "), done.stderr
    sent: dict[str, Any] = json.loads((pool.fake / "submit.json").read_text())
    assert (sent["spec"]["name"], sent["spec"]["learners_max"], sent["spec"]["outputs"]) == ("fit", 2, ["returned"])

    ran = run_job(pool, tmp_path / "job")
    assert (ran.stdout, ran.stderr) == ("trained 3 0.5 own module\n", "")


def test_submit_at_import_is_refused_with_advice(pool: FakePool, tmp_path: Path) -> None:
    bare = SCRIPT.partition("if __name__")[0].replace("import beside", "").replace(", beside.X", "") + "fit(1)\n"
    (tmp_path / "script.py").write_text(bare)
    pool.client.pool()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=environment, check=True, timeout=60)

    ran = run_job(pool, tmp_path / "job")
    assert ran.returncode != 0
    assert 'put the call under: if __name__ == "__main__":' in ran.stderr


def test_unsendable_value_is_refused_with_a_message(
    pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_module_of_mine.py").write_text(
        "import jupyter_dlaas as dlaas\n@dlaas.train\ndef fit(x):\n    return x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("some_module_of_mine")

    assert module.fit.__wrapped__(1) == 1
    assert module.fit([1, {"a": None}]).id == "fake-1"
    with pytest.raises(Invalid, match="train: argument 1 of fit is of type object; only plain values"):
        module.fit(object())

    def inner() -> None: ...

    with pytest.raises(Invalid, match="is defined inside another function"):
        jobs.train(inner)()


def test_submit_has_the_options_and_defaults_of_prepare() -> None:
    users = inspect.signature(jobs.submit).parameters
    all_options = inspect.signature(submission.prepare).parameters
    internal = {"environment", "files", "uploads", "origin", "notes", "cells", "python", "key"}

    assert set(users) == (set(all_options) - internal) | {"wait", "client"}
    assert all(all_options[name].default == users[name].default for name in set(users) & set(all_options))


def test_public_names_are_all_documented_and_none_is_private() -> None:
    import jupyter_dlaas

    assert dir(jupyter_dlaas) == sorted(jupyter_dlaas.__all__)
    silent = [name for name in dir(jupyter_dlaas) if name != "__version__" and not getattr(jupyter_dlaas, name).__doc__]
    assert silent == []


def test_errors_show_the_users_line_without_package_frames(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    shown: list[str] = []
    monkeypatch.setattr(shell, "_showtraceback", lambda _type, _error, lines: shown.extend(lines))
    shell.run_cell("import jupyter_dlaas as dlaas")

    for line in (r"dlaas.submit('x = 1\n', gpus='many')", "dlaas.job('fake-1').result()"):
        shown.clear()
        shell.run_cell(line)
        text = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(shown))
        assert line.split("(")[0] in text
        assert "jupyter_dlaas/" not in text, text


def test_waiting_for_a_halted_job_raises_and_names_the_resume(pool: FakePool) -> None:
    job = jobs.Job("fake-1", pool.client)
    pool.write_log("one\n")
    pool.set_view(state="HALTED", status_line="by you at step 5")

    with pytest.raises(dlaas.JobHalted, match=r"fake-1 was halted by you at step 5\. To resume it: job\.resume\(\)"):
        job.wait()
    assert job.wait(raise_on_failure=False).last_view.state == "HALTED"
    assert list(job.logs(follow=True)) == ["L0  one"]

    pool.set_view(state="COMPLETED")
    assert job.wait().last_view.state == "COMPLETED"


def test_unreadable_and_missing_scripts_name_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match=r"there is no file .*/print\('a'\)\..* End source text with a line break\."):
        dlaas.submit("print('a')")
    with pytest.raises(Invalid, match=r"there is no file .*/absent\.py\. Check the name.*directory\.$"):
        dlaas.submit("absent.py")

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root, who may run this test, reads every file
    with pytest.raises(Invalid, match=r"my file\.py cannot be read: Permission denied\. .* chmod u\+r 'my file"):
        dlaas.submit(Path("my file.py"))


def test_cell_that_follows_a_halted_job_names_the_magic(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    said = "fake-1 was halted by you at step 5. To resume it: %dlaas resume fake-1"
    pool.set_view(state="HALTED", status_line="by you at step 5")

    with shell() as one:
        capsys.readouterr()
        run(one, "%dlaas logs fake-1 -f")
        assert said in capsys.readouterr().out
        assert refusal(one, "%%train --wait\nx = 1") == said
