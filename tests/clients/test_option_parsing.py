"""Options as users type them, and the errors for values that make no sense."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from jupyter_dlaas.api import option_parsing
from jupyter_dlaas.api.option_parsing import Sizes
from jupyter_dlaas.api.submission import prepare
from jupyter_dlaas.display import formatting
from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.protocol import NAME_PATTERN


@pytest.mark.parametrize(
    ("gpus", "learners", "each", "meant"),
    [
        (None, None, None, (1, 1, 1)),
        ("1:4", None, None, (1, 4, 1)),
        (3, None, None, (3, 3, 1)),
        ((1, 4), None, None, (1, 4, 1)),
        ("0", None, None, (1, 1, 0)),
        ("2:8", None, 2, (1, 4, 2)),
        (None, "2:3", "4", (2, 3, 4)),
        (None, "1:3", 0, (1, 3, 0)),
    ],
)
def test_sizes(gpus: str | None, learners: str | None, each: int | None, meant: tuple[int, int, int]) -> None:
    low, high, per = meant
    assert option_parsing.sizes(gpus, learners, each) == Sizes(
        learners_min=low, learners_max=high, gpus_per_learner=per
    )


@pytest.mark.parametrize(
    ("gpus", "learners", "each", "says"),
    [
        ("4:1", None, None, "gpus: minimum 4 exceeds maximum 1; use 1:4"),
        ("many", None, None, "gpus: 'many' is not valid; use N or MIN:MAX, such as 2 or 1:4"),
        ("1:2:3", None, None, "gpus: '1:2:3' is not valid; use N or MIN:MAX"),
        ("-1", None, None, "gpus: '-1' is not valid; use N or MIN:MAX"),
        ("0:4", None, None, "gpus: the minimum is 1; use 1:4"),
        ("3:5", None, 2, "gpus: 3:5 are not multiples of the 2 GPUs per learner; use 2:6"),
        ("1", "1", None, "gpus: set either gpus or learners, not both"),
        (None, "0", None, "learners: 0 is too small; the minimum is 1"),
        ("0", None, 2, "gpus: 0 contradicts 2 GPUs per learner"),
        (True, None, None, "gpus: True is not valid; use N"),
    ],
)
def test_sizes_that_cannot_be_meant(gpus: str | None, learners: str | None, each: int | None, says: str) -> None:
    with pytest.raises(Invalid) as raised:
        option_parsing.sizes(gpus, learners, each)
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8G", 8 * 2**30), ("8 GiB", 8 * 2**30), ("8GB", 8 * 10**9), ("512m", 512 * 2**20), ("1.5K", 1536), (1024, 1024)],
)
def test_memory(text: str | int, size: int) -> None:
    assert option_parsing.memory_bytes(text) == size


@pytest.mark.parametrize("text", ["", "G", "8X", "-1G", "8 G B", "eight"])
def test_memory_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(Invalid, match="is not a memory size; use 8G or 512M"):
        option_parsing.memory_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("1h30m", 5400), ("90 min", 5400), ("45s", 45), ("1d 12h", 129_600), (90, 90), ("0.5h", 1800)],
)
def test_durations(text: str | int, seconds: float) -> None:
    assert option_parsing.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "2x", "h", "-5s", "1h and a bit"])
def test_durations_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(Invalid, match="is not a duration; use 45s, 30m, 2h or 1h30m"):
        option_parsing.duration_s(text)


def test_priorities() -> None:
    assert [option_parsing.priority(one) for one in ("low", "normal", "HIGH", "7", -3)] == [-100, 0, 100, 7, -3]
    with pytest.raises(Invalid, match="is not valid; use low, normal, high or a whole number"):
        option_parsing.priority("urgent")


def test_names_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "today")
    assert option_parsing.names("model, history,model") == ("model", "history")
    assert option_parsing.environment(["A=b=c", "HERE"]) == {"A": "b=c", "HERE": "today"}
    with pytest.raises(Invalid, match=r"outputs: 'a\.b' is not a valid variable name"):
        option_parsing.names("a.b")
    with pytest.raises(Invalid, match="env: NOT_HERE is not set in this environment; use NOT_HERE=VALUE"):
        option_parsing.environment(["NOT_HERE"])
    with pytest.raises(Invalid, match="is not a valid environment variable name"):
        option_parsing.environment({"a b": "c"})


@pytest.mark.parametrize(
    ("line", "joined"),
    [
        ("-o model, history", "-o model,history"),
        ("-omodel, history digits", "-o model,history"),
        ("digits --outputs=model , opt, history --gpus 2", "--outputs model,opt,history"),
        ("--push model ,opt", "--push model,opt"),
        ("-o model,history digits", None),
        ("-o model digits", None),
        ("digits -o model, --gpus 2", None),
        ("--metric loss, digits", None),
        ("digits -o", None),
    ],
)
def test_list_divided_by_a_space_is_refused(line: str, joined: str | None) -> None:
    said = option_parsing.list_with_space(line.split())

    assert said is None if joined is None else said is not None and said.endswith(f": {joined}")


def test_job_environment_excludes_jupyter_and_unsendable_variables() -> None:
    given = {
        "PATH": "/bin",
        "JPY_PARENT_PID": "1",
        "JUPYTERHUB_API_TOKEN": "s",
        "JUPYTER_TOKEN": "s",
        "RANK": "3",
        "BROKEN": "\udcff",
        "JUPYTER_PATH": "/x",
    }

    assert option_parsing.without_jupyter(given) == {"PATH": "/bin", "JUPYTER_PATH": "/x"}


@pytest.mark.parametrize("text", ["My model (2).py", "3d.ipynb", "über.py", "/a/b/train.py", "---", "a" * 99])
def test_every_file_gives_a_job_name(text: str) -> None:
    import re

    assert re.fullmatch(NAME_PATTERN, option_parsing.job_name(text))


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("import numpy\nimport torch.nn as nn", "torch"),
        ("from keras import layers", "tensorflow"),
        ("def f():\n    import jax", "jax"),
        ("import os", None),
        ("import", None),
    ],
)
def test_frameworks(source: str, framework: str | None) -> None:
    assert option_parsing.framework_of(source) == framework


def test_on_and_off() -> None:
    given: list[bool | str] = ["on", "off", " ON", True, False]

    assert [option_parsing.on_off(one, option="autolog") for one in given] == [True, False, True, True, False]
    with pytest.raises(Invalid, match="autolog: 'yes' is not valid; use on or off"):
        option_parsing.on_off("yes", option="autolog")


def test_figures() -> None:
    seconds = (0.3, 0.038, 5, 41, 60, 200, 7500, 273_600, None)
    assert [formatting.duration(one) for one in seconds] == [
        *("0.3 s", "38 ms", "5 s", "41 s", "1 min", "3 min 20 s", "2 h 05 min", "3 d 4 h", "-")
    ]
    assert [formatting.number(one) for one in (0.412, 0.0412, 11730, 84.1, 1234.5, 0.00001, float("nan"))] == [
        *("0.412", "0.0412", "11,730", "84.1", "1,235", "1.00e-5", "NaN")
    ]
    assert [formatting.bytes_text(44_800_000), formatting.bytes_text(8 * 2**30, binary=True)] == ["44.8 MB", "8.0 GiB"]
    assert [formatting.bar(one, 4) for one in (0, 0.5, 0.99, 1)] == ["░░░░", "██░░", "███░", "████"]
    spots = [(3, 12, 40), (0, 12, 40), (3, None, 40), (0, None, 1051)]
    assert [formatting.place(*one) for one in spots] == ["epoch 3/12", "epoch 0/12", "epoch 3", "step 1,051"]
    assert [formatting.percent(one) for one in (0.999, 1, None)] == ["99%", "100%", "-"]


def test_an_interpreter_is_sent_as_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    for given in ("bin/python", "./bin/python", "python"):
        assert option_parsing.interpreter(given) == str(tmp_path / "bin" / "python")


def test_an_interpreter_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"interpreter: .*/nowhere.* is not an executable file"):
        option_parsing.interpreter(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "option",
    [
        "cpus",
        "schedule",
        "framework",
        "outputs",
        "include",
        "env",
        "secret",
        "metric",
        "args",
        "interpreter",
        "directory",
    ],
)
@pytest.mark.parametrize(
    "value", [object(), 3.5, [None], b"x", print], ids=["object", "float", "list", "bytes", "function"]
)
def test_value_of_a_wrong_type_is_refused_by_name(option: str, value: object) -> None:
    if (option, value) in (("cpus", 3.5), ("args", [None])):
        return  # a number of CPUs; any object can be an argument
    with pytest.raises(Invalid, match=f"^{option}: "):
        prepare("x = 1\n", **cast("Any", {option: value}))


def test_function_is_refused_as_a_script() -> None:
    def fold() -> None: ...

    with pytest.raises(Invalid, match=r"^fold is a function; submit runs scripts: .* in a cell with %%train"):
        prepare(cast("Any", fold))


def test_text_is_no_list_of_arguments() -> None:
    with pytest.raises(Invalid, match=r"^args: expected a list, such as"):
        prepare("x = 1\n", args="10")


def test_single_file_can_be_included(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1")

    assert [file.path for file in prepare("x = 1\n", include="data.csv", directory=tmp_path).submit.files] == [
        "files/data.csv"
    ]


def _python(folder: Path, answer: str) -> Path:
    """Return a stand-in for another Python that gives this answer about a program's syntax."""
    found = folder / "python"
    found.write_text(f"#!/bin/sh\ncat > /dev/null\nprintf '{answer}'\n")
    found.chmod(0o755)
    return found


def test_syntax_is_judged_by_the_interpreter_of_the_job(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import own\nlazy from other import net\nprint(1)\n")
    (tmp_path / "own.py").write_text("")
    newer = prepare(script, interpreter=str(_python(tmp_path, "")), directory=tmp_path)

    assert [file.path for file in newer.submit.files] == ["files/own.py"]
    with pytest.raises(Invalid, match=r"train.py, line 2: invalid syntax"):
        prepare(script, directory=tmp_path)
    with pytest.raises(Invalid, match=r"train.py, line 3: no such statement"):
        prepare(script, interpreter=str(_python(tmp_path, "line 3: no such statement")), directory=tmp_path)
    with pytest.raises(Invalid, match=r"train.py, line 2: invalid syntax"):
        prepare(script, interpreter="/bin/false", directory=tmp_path)
