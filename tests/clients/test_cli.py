"""The command line: every verb against the fake engine, as a person runs it."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.cli import main, parser, terminal
from jupyter_dlaas.cli.terminal import Ink
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.codec import decode
from jupyter_dlaas.wire.protocol import JobView, PoolView, Unavailable
from tests.clients.conftest import WIRE, FakePool, until


def golden(name: str) -> JobView:
    return decode(JobView, json.loads((WIRE / f"job_{name}.json").read_text()), unknown="ignore")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_halt_that_loses_the_training_needs_a_yes(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    lost = "It has run no training loop that writes checkpoints, so it starts over when resumed."
    pool.set_view(actions=[{"id": "halt", "label": "Halt", "enabled": True, "why_not": None, "confirm": lost}])

    code, out, err = run(capsys, "halt", "fake-1")
    assert (code, out) == (4, "")
    assert f"fake-1 was not halted. {lost} To halt it anyway: jupyter dlaas halt fake-1 --yes" in err
    assert not [one for one in pool.asked() if one["uri"].endswith("/halt")]

    code, out, err = run(capsys, "halt", "fake-1", "--yes")
    assert (code, err) == (0, "")
    assert [one for one in pool.asked() if one["uri"].endswith("/halt")]


def requests(pool: FakePool) -> list[str]:
    """Return the requests that change a job."""
    return [f"{one['method']} {one['uri']}" for one in pool.asked() if one["method"] != "GET"]


@pytest.mark.parametrize("verb", ["halt", "resume", "checkpoint", "cancel", "retry", "delete"])
def test_verb_changes_each_of_several_jobs_once(verb: str, pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, verb, "fake", "--pool", str(pool.folder), "fake-2", "fake-1", "fake-2")

    method, route = ("DELETE", "") if verb == "delete" else ("POST", f"/{verb}")
    assert (code, err) == (0, "")
    assert requests(pool) == [f"{method} /dlaas/jobs/{job}{route}" for job in ("fake-1", "fake-2")]
    assert len([line for line in out.splitlines() if line.startswith("fake-")]) == 2


def test_error_of_one_job_stops_no_other_job(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "delete", "fake-3", "absent-1", "fake-2")

    assert (code, out) == (3, "fake-2 was deleted\n")
    assert err.splitlines() == [
        "dlaas: there is no job absent-1",
        "dlaas: fake-3 is FAILED and does not accept this: it has ended",
        "dlaas: delete succeeded for 1 of 3 jobs and failed for absent-1, fake-3",
    ]

    code, out, err = run(capsys, "cancel", "fake-2", "fake-3", "--json")
    found = json.loads(out)
    assert (code, err, [job["state"] for job in found["jobs"]]) == (4, "", ["PROCESSING"])
    assert [(one["name"], one["error"]["code"]) for one in found["errors"]] == [("fake-3", "not_allowed")]


def test_verb_changes_the_jobs_in_a_state(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "cancel", "--state", "QUEUED,PROCESSING")[0] == 0

    listed = [one["uri"] for one in pool.asked() if one["method"] == "GET"]
    assert listed[-1] == "/dlaas/jobs?state=QUEUED%2CPROCESSING&limit=10000"
    assert requests(pool) == ["POST /dlaas/jobs/fake-1/cancel"]


def test_lost_engine_ends_the_requests_and_waiting_jobs_come_first(
    pool: FakePool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def lost(client: Client, job: str, verb: str) -> JobView:
        asked.append(job)
        raise Unavailable("the engine does not answer")

    runs, waits = golden("processing"), replace(golden("queued"), id="vit-1")
    monkeypatch.setattr(Client, "jobs", lambda self, state, limit: [runs, waits])
    monkeypatch.setattr(Client, "act", lost)

    code, out, err = run(capsys, "cancel", "--state", "QUEUED,PROCESSING")

    assert (code, out, asked) == (5, "", [waits.id])
    assert err.splitlines() == [
        "dlaas: the engine does not answer",
        f"dlaas: cancel succeeded for 0 of 2 jobs and failed for {waits.id}, {runs.id}",
    ]


def test_halt_of_several_jobs_asks_for_each(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    pool.set_view(actions=[{"id": "halt", "label": "Halt", "enabled": True, "why_not": None, "confirm": "It is lost."}])

    code, out, err = run(capsys, "halt", "fake-1", "fake-2")

    assert (code, out, requests(pool)) == (4, "", [])
    assert "fake-2 was not halted. It is lost. To halt it anyway: jupyter dlaas halt fake-2 --yes" in err
    assert run(capsys, "halt", "--yes", "fake-1", "fake-2")[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["jobs"], "fake-1"),
        (["jobs"], "store was missing or empty. 2 jobs were recovered"),
        (["pool"], "pool lab"),
        (["pool", "--order", "las", "--preemption", "off"], "Order: fair, with preemption."),
        (["queue"], "WAITING|No jobs are waiting"),
        (["queue", "list"], r"QUEUE +GUARANTEED +WEIGHT +HOLDS +WAITING\n.*\nresearch +6 +2 +6 +1$"),
        (["queue", "set", "research", "--weight", "2"], "research"),
        (["cordon", "gpu-a"], "pool lab"),
        (["uncordon", "gpu-a"], "pool lab"),
        (
            ["drain", "gpu-a", "--dry-run"],
            "gpu-a: 1 job shrinks.\n  fake-1 shrinks from 4 to 2\n\nNothing was changed.",
        ),
        (["drain", "gpu-a"], "gpu-a is being drained. To use it again: jupyter dlaas uncordon gpu-a"),
        (["scale", "fake", "3"], "fake-1  Processing"),
        (["halt", "fake-1"], "fake-1"),
        (["resume", "fake-1"], "fake-1"),
        (["cancel", "fake-1"], "fake-1"),
        (["retry", "fake-1"], "fake-1"),
        (["delete", "fake-1"], "fake-1 was deleted"),
        (["why", "fake-1"], r"^fake-1 is 2nd of 5.\n  needs 4 GPUs at once"),
        (["events", "fake-1"], "You submitted it."),
        (["source", "fake-1"], r"print\('hello'\)"),
        (["report", "fake-1"], "{}"),
        (["logs", "fake-1"], "L0  hello"),
        (["priority", "fake-1", "high"], "Priority: "),
        (["metrics", "fake-1"], "No metrics yet."),
        (["results", "fake-1"], "fake-1 has no results. It was submitted with -o model."),
        (["artifacts", "fake-1"], "SIZE +PATH|has written no files"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_each_verb_prints_text_and_json(
    words: list[str], says: str, pool: FakePool, capsys: pytest.CaptureFixture[str]
) -> None:
    pool.write_log("hello\n")
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert re.search(says, out)

    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    for line in out.splitlines():
        json.loads(line)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["submit", "train.py", "--gpuss", "1:4"], "submit: error: unknown option --gpuss. Did you mean --gpus?"),
        (["submit", "train.py", "--gpu=2"], "submit: error: unknown option --gpu. Did you mean --gpus?"),
        (["why", "fake-1", "now"], "error: unexpected argument: now. For all options: jupyter dlaas why --help"),
        (["halt", "--yse", "fake-1"], "error: unknown option --yse. Did you mean --yes?"),
        (["cancel"], "cancel: error: give the NAME of one or more jobs, or --state"),
        (["cancel", "fake-1", "--state", "QUEUED"], "error: give the NAME of one or more jobs, or --state, not both"),
        (["submit", "t.py", "-o", "a", "b"], "argument: b. Separate the entries of a list by commas: -o a,b"),
        (["submit", "t.py", "-o", "a,", "b"], "-o: remove the spaces from the list 'a, b': -o a,b"),
        (["jobs", "--zzz=1"], "error: unknown option --zzz=1. For all options: jupyter dlaas jobs --help"),
    ],
)
def test_unknown_argument_is_named_below_the_usage(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(words)

    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert said.startswith(f"usage: jupyter dlaas {words[0]} ")
    assert said.endswith(f"{says}\n")


def test_unknown_verb_names_the_closest_one(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, says in (("jbos", "Did you mean jobs?"), ("fly", "For all verbs: jupyter dlaas --help")):
        for before in ([], ["--json"], ["--pool", "x"]):
            with pytest.raises(SystemExit) as caught:
                main.main([*before, verb])
            assert caught.value.code == 2
            assert capsys.readouterr().err.endswith(f"error: unknown verb: {verb}. {says}\n")


def test_command_alone_lists_the_jobs_and_names_the_help(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert "fake-1" in out
    assert out.endswith("For all verbs: jupyter dlaas --help\n")


def test_every_verb_has_handler_group_and_valid_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(main.RUN) == set(parser.VERBS)
    assert sum(map(len, parser.GROUPS.values())) == len(parser.VERBS)
    for verb in parser.VERBS.values():
        words = shlex.split(verb.example.partition(" > ")[0])
        assert parser.build().parse_args(words).verb == verb.name
        with pytest.raises(SystemExit):
            main.main([verb.name, "--help"])
        assert f"Example:\n  jupyter dlaas {verb.example}\n" in capsys.readouterr().out


def test_every_option_of_every_verb_has_a_help_text() -> None:
    (verbs,) = (action.choices for action in parser.build()._actions if isinstance(action, argparse._SubParsersAction))
    silent = [(name, one.dest) for name, verb in verbs.items() for one in verb._actions if not one.help]

    assert silent == []


@pytest.mark.parametrize(
    ("words", "request_line", "body"),
    [
        (["pool", "--order", "las"], "PATCH /dlaas/pool", {"order": "las"}),
        (["pool", "--preemption", "off"], "PATCH /dlaas/pool", {"preemption": False}),
        (
            ["queue", "set", "research", "--guaranteed", "6"],
            "PUT /dlaas/queues/research",
            {"guaranteed": 6},
        ),
        (["queue", "set", "research"], "PUT /dlaas/queues/research", {}),
        (["queue", "remove", "research"], "DELETE /dlaas/queues/research", None),
        (["pool", "--placement", "topology"], "PATCH /dlaas/pool", {"placement": "topology"}),
        (["pool", "--spot-price", "0"], "PATCH /dlaas/pool", {"spot_price": 0.0}),
        (["pool", "--spot-notice", "2m"], "PATCH /dlaas/pool", {"spot_notice_s": 120.0}),
        (["cordon", "gpu-a"], "POST /dlaas/nodes/gpu-a/cordon", {}),
        (["uncordon", "gpu-a"], "POST /dlaas/nodes/gpu-a/uncordon", {}),
        (["drain", "gpu-a", "--dry-run"], "GET /dlaas/nodes/gpu-a/drain", None),
        (["drain", "gpu-a"], "POST /dlaas/nodes/gpu-a/drain", {}),
        (["priority", "fake-1", "high"], "PATCH /dlaas/jobs/fake-1", {"priority": 100}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_pool_settings_are_sent_as_given(
    words: list[str], request_line: str, body: object, pool: FakePool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *words)[0] == 0

    last = pool.asked()[-1]
    assert f"{last['method']} {last['uri']}" == request_line
    assert (json.loads(last["body"]) if "body" in last else None) == body


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["queue", "set"], "dlaas: queue set: missing queue name, as in `queue set research --guaranteed 6`\n"),
        (["queue", "remove"], "dlaas: queue remove: missing queue name, as in `queue remove research`\n"),
        (["queue", "--weight", "2"], "dlaas: queue: --weight and --guaranteed require `queue set NAME`\n"),
    ],
)
def test_incomplete_queue_setting_is_refused_with_the_missing_part(
    words: list[str], says: str, pool: FakePool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *words) == (2, "", says)


def test_scale_sends_the_requested_size(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "scale", "fake", "3")

    assert [one["uri"] for one in pool.asked() if one["method"] == "PATCH"] == ["/dlaas/jobs/fake-1"]


def test_submit_sends_the_script_and_its_own_modules(
    pool: FakePool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    (tmp_path / "own.py").write_text("from helpers import deep\n")
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("")
    (tmp_path / "helpers" / "deep.py").write_text("x = 1\n")
    (tmp_path / "table.csv").write_text("a,b\n")
    (tmp_path / "my-train.py").write_text("import torch\nimport own\n")

    code, out, _ = run(
        capsys, "submit", "my-train.py", "--gpus", "1:4", "--spot", "--priority", "high", "-o", "model,history",
        "-e", "A=b",
        *("--include", "table.csv", "--memory", "8G", "--max-time", "2h", "--metric", "loss: (.*)"),
        *("--autolog", "off", "--", "--lr", "0.1"),
    )  # fmt: skip

    assert code == 0
    assert "jupyter dlaas logs fake-1 -f" in out
    sent: dict[str, Any] = json.loads((pool.fake / "submit.json").read_text())
    spec = sent["spec"]
    assert (spec["name"], spec["learners_min"], spec["learners_max"], spec["priority"]) == ("my_train", 1, 4, 100)
    assert spec["spot"] is True
    assert (spec["outputs"], spec["command"], spec["framework"]) == (["model", "history"], ["--lr", "0.1"], "torch")
    assert spec["autolog"] is False
    assert (spec["memory_bytes_per_learner"], spec["max_time_s"]) == (8 * 2**30, 7200.0)
    assert (spec["directory"], spec["interpreter"]) == (str(tmp_path), sys.executable)
    names = ["files/helpers/__init__.py", "files/helpers/deep.py", "files/own.py", "files/table.csv"]
    assert [one["path"] for one in sent["files"]] == names
    assert sent["environment"]["A"] == "b"
    assert "secret" not in json.dumps(sent)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["why", "absent-1"], 3, "dlaas: there is no job absent-1\n"),
        (
            ["submit", "nothing.py"],
            2,
            "there is no file {here}/nothing.py. Check the name, and that the current directory is the right",
        ),
        (["submit", "god.py"], 2, "dlaas: there is no file {here}/god.py. Did you mean good.py?\n"),
        (["submit", "good"], 2, "dlaas: there is no file {here}/good. Did you mean good.py?\n"),
        (["submit", "nowhere/train.py"], 2, "nowhere/train.py. The directory nowhere does not exist.\n"),
        (["submit", "good.py/x.py"], 2, "good.py/x.py. The directory good.py does not exist.\n"),
        (["submit", "folder"], 2, "dlaas: folder is a directory. Name a script in it, such as folder/main.py\n"),
        (["submit", "folder/data"], 2, "dlaas: folder/data is a directory without Python scripts. Name the script to"),
        (["submit", "empty.py"], 2, "dlaas: empty.py is empty, so there is nothing to run. Save the program there, or"),
        (["submit", "notes.py"], 2, "dlaas: notes.py contains only comments, so there is nothing to run. Save the"),
        (["submit", "model.pt"], 2, "dlaas: model.pt is a binary file, not a Python script. Name the script to run\n"),
        (["submit", "latin.py"], 2, "dlaas: latin.py, line 2: not UTF-8 text. Save the script as UTF-8\n"),
        (["submit", "a b.ipynb"], 2, "or convert it: jupyter nbconvert --to script 'a b.ipynb'\n"),
        (["submit", "bad.py"], 2, "bad.py, line 1: "),
        (["submit", "good.py", "--gpus", "4:1"], 2, "gpus: minimum 4 exceeds maximum 1; use 1:4"),
        (["submit", "good.py", "--max-time", "soon"], 2, "max time: 'soon' is not a duration"),
        (["submit", "good.py", "--placement", "far"], 2, "placement: 'far' is not valid; use one of pack, spread"),
        (["submit", "good.py", "--directory", "nowhere"], 2, "nowhere does not exist; create it, or use an existing"),
        (["submit", "good.py", "--directory", "good.py"], 2, "good.py is not a directory; use /"),
        (["submit", "good.py", "--include", "data/x.csv"], 2, "dlaas: include: there is no data/x.csv in {here}.\n"),
        (["submit", "good.py", "--include", "badd.py"], 2, "there is no badd.py in {here}. Did you mean bad.py?\n"),
        (["submit", "good.py", "--include", "/x/y"], 2, "dlaas: include: there is no file or folder /x/y.\n"),
        (
            ["submit", "good.py", "--directory", "folder", "--include", "bad.py"],
            2,
            "{here}/folder, the job's working directory (--directory). For the one in the current directory: --include",
        ),
        (["submit", "good.py", "--include", "pipe"], 2, "pipe is neither a file nor a folder"),
        (["submit", "good.py", "--include", "x" * 300], 2, "xx' cannot be used: File name too long"),
        (["submit", "~no.user/good.py"], 2, "script: '~no.user/good.py' cannot be used: Could not determine home"),
        (
            ["submit", "good.py", "--interpreter", "~no.user/python"],
            2,
            "interpreter: '~no.user/python' cannot be used",
        ),
        (["check", "x" * 300], 2, "xx' cannot be used: File name too long"),
        (["jobs", "--pool", "~no.user/pool"], 2, "pool: the directory '~no.user/pool' cannot be used"),
        (["scale", "fake", "many"], 2, "learners: 'many' is not a whole number"),
        (["jobs", "--", "x"], 2, "only `submit` takes arguments after --"),
    ],
)
def test_errors_are_sentences_with_a_code(
    words: list[str],
    code: int,
    says: str,
    pool: FakePool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text("def\n")
    (tmp_path / "good.py").write_text("x = 1\n")
    (tmp_path / "folder" / "data").mkdir(parents=True)
    for name in ("eval.py", "main.py"):
        (tmp_path / "folder" / name).touch()
    (tmp_path / "empty.py").write_text("\n")
    (tmp_path / "notes.py").write_text("# to do\n")
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04\x00\xff")
    (tmp_path / "latin.py").write_bytes(b"x = 1\n# \xe4\n")
    (tmp_path / "a b.ipynb").write_text("{}")
    os.mkfifo(tmp_path / "pipe")

    got, out, err = run(capsys, *words)

    assert got == code
    assert says.format(here=tmp_path) in err
    assert "Traceback" not in err
    assert not out


def test_an_error_is_json_where_that_was_asked(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--json", "why", "absent-1")

    assert (code, err, json.loads(out)["error"]["code"]) == (3, "", "not_found")


def test_status_reports_a_missing_engine_and_starts_none(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "engine", "status")[0] == 3
    assert not (pool.folder / "engine.json").exists()

    pool.client.pool()
    assert run(capsys, "engine", "status")[:2] == (
        0,
        f"The engine of the pool in {pool.folder} is running: process {pool.pid()}, version ?.\n",
    )
    assert run(capsys, "engine", "stop")[0] == 0
    assert run(capsys, "engine", "status")[0] == 3


@contextmanager
def start(pool: FakePool, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a process of its own, as in a terminal's foreground. It finds a running engine."""
    pool.client.pool()
    with subprocess.Popen(
        [sys.executable, "-m", "jupyter_dlaas.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # Who runs the tests in the background of a script has Ctrl-C switched off for all that follow.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_following_prints_lines_until_the_job_is_over(pool: FakePool) -> None:
    pool.write_log("one\n")
    with start(pool, "logs", "fake-1", "-f") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "L0  one\n"
        pool.write_log("two\nthree")
        pool.set_view(state="COMPLETED")
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (0, "L0  two\nL0  three\n", "")


@pytest.mark.parametrize(("state", "code"), [("COMPLETED", 0), ("FAILED", 1), ("CANCELLED", 1)])
def test_attach_ends_with_zero_only_when_the_job_completed(pool: FakePool, state: str, code: int) -> None:
    pool.write_log("one\n")
    with start(pool, "attach", "fake-1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "L0  one\n"
        pool.set_view(state=state)
        _out, err = process.communicate(timeout=30)

    assert process.returncode == code
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [["logs", "fake-1", "-f"], ["attach", "fake-1"]])
def test_interrupt_detaches_with_a_message(pool: FakePool, words: list[str]) -> None:
    pool.write_log("one\n")
    with start(pool, *words) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "Detached: fake-1 keeps running. To follow it: jupyter dlaas attach fake-1" in err
    assert "Traceback" not in err


def test_wait_for_a_failing_job_prints_cause_place_advice(pool: FakePool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = 1\n")
    with start(pool, "submit", str(script), "--wait") as process:
        until(lambda: (pool.fake / "submit.json").exists())
        failed = json.loads((WIRE / "job_failed.json").read_text())
        pool.set_view(**{key: failed[key] for key in ("state", "failure", "tone", "state_label")})
        _out, err = process.communicate(timeout=30)

    assert process.returncode == 1
    assert failed["failure"]["what"] in err
    assert f"What to do: {failed['failure']['advice']}" in err
    assert "Traceback" not in err


def test_closed_output_is_no_error(pool: FakePool) -> None:
    pool.write_log("x" * 100 + "\n")
    pool.client.pool()
    command = f"{sys.executable} -m jupyter_dlaas.cli.main logs fake-1 | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_table_of_jobs_lines_up() -> None:
    views = [golden(name) for name in ("processing", "queued", "halted", "failed", "completed")]
    lines = terminal.jobs_table(views, 1773500000.0, Ink()).splitlines()

    assert lines[0].split()[:4] == ["JOB", "STATE", "GPUS", "PROGRESS"]
    at = lines[0].index("STATE")
    assert [line[at:].split()[0] for line in lines[1:6]] == [str(view.state) for view in views]
    assert lines[-1].startswith("1 running, 1 queued, 1 halted, 2 ended.  Why is it waiting?  jupyter dlaas why ")
    assert not any("\x1b" in line for line in lines)


def test_jobs_are_listed_with_nodes_and_pods_or_devices() -> None:
    view = golden("processing")
    learner = view.learners[0]
    pods = [replace(learner, node=f"node-{n % 2}", pod=f"vit-1-m{n}") for n in range(3)]
    gpu = replace(learner, node="lab", pod="", devices=("GPU-0a1b2c3d-1111-2222-3333-444455556666",))
    lines = terminal.jobs_table(
        [replace(view, learners=tuple(pods)), replace(view, learners=(gpu,)), golden("halted")], 1773500000.0, Ink()
    ).splitlines()

    at = lines[0].index("WHERE")
    assert lines[1][at:].startswith("node-0 (vit-1-m0), node-1 (vit-1-m1), 1 more  ")
    assert lines[2][at:].startswith("lab (GPU-0a1b2c3d)  ")
    assert lines[3][at:].startswith("-  ")


def test_of_a_long_line_the_beginning_is_shown() -> None:
    waiting = golden("queued")
    line = [f"vit-{number}" for number in range(1, 1251)]
    pool = replace(decode(PoolView, json.loads((WIRE / "pool.json").read_text()), unknown="ignore"), queue=tuple(line))
    lines = terminal.queue_table(pool, {"vit-1": replace(waiting, id="vit-1")}, Ink()).splitlines()

    assert [row.split()[:2] for row in (lines[1], lines[100])] == [["1", "vit-1"], ["100", "vit-100"]]
    assert lines[-1] == "1,150 more jobs are waiting."


def test_the_table_fits_the_terminal_and_has_colours_there() -> None:
    views = [golden("processing"), golden("failed")]
    text = terminal.jobs_table(views, 1773500000.0, Ink(is_coloured=True, width=100))

    assert "\x1b[31mFAILED" in text
    plain = re.sub(r"\x1b\[\d+m", "", text)
    assert max(map(len, plain.splitlines()[:3])) <= 100


def test_pool_shows_devices_and_their_jobs() -> None:
    pool = decode(PoolView, json.loads((WIRE / "pool.json").read_text()), unknown="ignore")
    text = terminal.pool_text(pool, Ink())

    assert text.startswith("pool lab   ")
    assert "Spot jobs: a device counts as 0.3 in its queue; notice 30 s." in text
    assert re.search(r"gpu-a +resnet-48 █+░* +\d+%", text)


@pytest.mark.parametrize("redirect", ["", ">&-", "2>&-"])
def test_any_text_is_printed_on_any_stream(tmp_path: Path, redirect: str) -> None:
    notebook = tmp_path / "Größe.ipynb"
    notebook.write_text("no notebook")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = f"{shlex.quote(sys.executable)} -m jupyter_dlaas.cli check {shlex.quote(str(notebook))} {redirect}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, timeout=60)

    assert "Traceback" not in done.stderr
    assert ("Gr??e.ipynb" in done.stdout) == (redirect != ">&-"), done
    assert done.returncode == 1


def test_characters_of_progress_have_similar_ones() -> None:
    output = subprocess.run(
        [sys.executable, "-c", "from jupyter_dlaas.cli import streams; streams.prepare(); print('██░ 3 → 4 … ü')"],
        capture_output=True,
        encoding="latin-1",
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        check=True,
    ).stdout

    assert output == "##. 3 -> 4 ... ü\n"
