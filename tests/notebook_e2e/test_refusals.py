"""Everything that `%%train` refuses before anything starts, with the sentence that the user sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from tests.notebook_e2e.shells import refusal, run
from tests.notebook_e2e.shells import shell as new_shell


@pytest.fixture(autouse=True)
def _nothing_may_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("JUPYTER_DLAAS_POOL_DIR", str(tmp_path / "pool"))
    monkeypatch.setenv("JUPYTER_DLAAS_WARM", "0")
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "pool").exists(), "a refused cell asked the pool"


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    with new_shell() as one:
        yield one


def one_thing(sentence: str) -> str:
    return f"Not submitted: 1 error to fix first.\n- {sentence}"


# ------------------------------------------------------------------------------------------- names and what they hold


def test_a_name_that_nothing_defines(shell: InteractiveShell) -> None:
    run(shell, "model = 1")

    assert refusal(shell, "%%train\nprint(1)\nprint(modle)") == one_thing(
        "cell [3], line 3, reads `modle`, which no executed cell defines. Did you mean `model`?"
    )


def test_a_name_that_is_like_no_other(shell: InteractiveShell) -> None:
    assert refusal(shell, "%%train\nprint(zzz)") == one_thing(
        "cell [2], line 2, reads `zzz`, which no executed cell defines. "
        "Run the cell that defines `zzz`, or define it here."
    )


def test_the_output_of_an_earlier_cell(shell: InteractiveShell) -> None:
    run(shell, "3")

    assert refusal(shell, "%%train\nprint(_)") == one_thing(
        "cell [3], line 2, reads `_`; outputs of the notebook do not exist in a job. Assign the value to a variable."
    )


def test_input_in_the_training_cell(shell: InteractiveShell) -> None:
    assert refusal(shell, "%%train\n\nepochs = int(input('epochs? '))") == one_thing(
        "cell [2], line 3: input() does not work in a job. Call it in an earlier cell and use the variable here."
    )


def test_an_object_that_cannot_be_made_again(shell: InteractiveShell) -> None:
    shell.user_ns["thing"] = object()

    assert refusal(shell, "%%train\nprint(thing)") == one_thing(
        "cell [2], line 2, needs `thing` (object), which the job cannot recreate: it exists in the kernel, but no "
        "recorded cell defines it. Use --push thing to send its current value."
    )


def test_a_name_for_o_that_nothing_binds(shell: InteractiveShell) -> None:
    assert refusal(shell, "%%train -o historie\nhistory = []") == one_thing(
        "-o historie: `historie` is not defined in the training cell or before it. Did you mean -o history?"
    )


# -------------------------------------------------------------------------------------------------------------- --push


def test_pushing_a_name_that_is_not_there(shell: InteractiveShell) -> None:
    run(shell, "model = 1")

    assert refusal(shell, "%%train --push modle\nprint(1)") == one_thing(
        "--push modle: the kernel has no `modle`. Did you mean --push model?"
    )


def test_pushing_a_lock(shell: InteractiveShell) -> None:
    run(shell, "import threading\nlock = threading.Lock()")

    assert refusal(shell, "%%train --push lock\nprint(lock)") == one_thing(
        "--push lock: `lock` is a lock and cannot be sent to a job. "
        "Create it in the training cell, or push the data it was created from."
    )


def test_pushing_an_open_file(shell: InteractiveShell) -> None:
    run(shell, "file = open('log.txt', 'w')")

    assert refusal(shell, "%%train --push file\nprint(file)") == one_thing(
        "--push file: `file` is an open file and cannot be sent to a job. "
        "Create it in the training cell, or push the data it was created from."
    )
    run(shell, "file.close()")


def test_push_of_an_object_that_fails_while_pickling(shell: InteractiveShell) -> None:
    run(
        shell,
        "import threading\nclass Model:\n    pass\nmodel = Model()\nmodel.parts = [1, {'guard': threading.Lock()}]",
    )

    assert refusal(shell, "%%train --push model\nprint(model)") == one_thing(
        "cell [3], line 1: --push model: `model.parts[1]['guard']` is a lock and cannot be sent to a job. "
        "Create it in the training cell, or push the data it was created from."
    )


def test_pushing_an_object_of_a_class_that_was_defined_again(shell: InteractiveShell) -> None:
    run(shell, "class Net:\n    pass\nmodels = [Net()]")
    run(shell, "class Net:\n    more = 1")

    assert refusal(shell, "%%train --push models\nprint(models)") == one_thing(
        "cell [4], line 1: --push models: `models[0]` is a `Net` from before its defining cell ran again. "
        "Run models[0].__class__ = Net, or run the cell that creates it again."
    )


def test_pushing_an_object_of_a_class_inside_a_function(shell: InteractiveShell) -> None:
    run(shell, "def make():\n    class Net:\n        pass\n    return Net()\nmodel = make()")

    assert refusal(shell, "%%train --push model\nprint(model)") == one_thing(
        "cell [3], line 1: --push model: `model` is a `Net`, a class defined inside `make`. Define it at the top level."
    )


def test_pushing_a_definition(shell: InteractiveShell) -> None:
    run(shell, "class Net:\n    pass\ndef train():\n    pass")

    assert refusal(shell, "%%train --push Net\nprint(Net())") == one_thing(
        "--push Net: `Net` is a class of this notebook and is sent automatically if it is used. Remove it from --push."
    )
    assert refusal(shell, "%%train --push train\ntrain()") == one_thing(
        "--push train: `train` is a function of this notebook and is sent automatically if it is used. "
        "Remove it from --push."
    )


def test_pushing_a_module(shell: InteractiveShell) -> None:
    run(shell, "import math")

    assert refusal(shell, "%%train --push math\nprint(math.pi)") == one_thing(
        "--push math: `math` is a module and cannot be sent to a job. Import it in a cell."
    )


def test_pushing_an_object_apart_from_one_that_holds_it(shell: InteractiveShell) -> None:
    run(shell, "class Net:\n    pass\nclass Optimizer:\n    def __init__(self, net):\n        self.net = net")
    run(shell, "model = Net()\nopt = Optimizer(model)")
    run(shell, "class Net:\n    pass")

    assert refusal(shell, "%%train --push model\nprint(model, opt)") == one_thing(
        "cell [3], line 2: `opt` would refer to a different `model` than the pushed one. Push both: --push model,opt."
    )


def test_pushing_more_than_a_gigabyte(shell: InteractiveShell) -> None:
    run(shell, "import numpy as np\nhuge = np.broadcast_to(np.int8(0), (2**31,))")

    assert refusal(shell, "%%train --push huge\nprint(huge)") == one_thing(
        "--push huge: 2.1 GB exceeds the maximum of 1.1 GB. Save the value to a file and load it in the training cell."
    )


# ------------------------------------------------------------------------------------------------------------ the cell


def test_an_error_of_syntax_names_its_line(shell: InteractiveShell) -> None:
    said = refusal(shell, "%%train\nx = 1\nfor i in\n    print(i)")

    assert said == one_thing("cell [2], line 3: invalid syntax. Fix the line and run the cell again.")


def test_a_cell_with_nothing_in_it(shell: InteractiveShell) -> None:
    assert refusal(shell, "%%train\n# later") == one_thing(
        "cell [2] is empty below %%train; write the training code there."
    )


def test_a_cell_of_another_language(shell: InteractiveShell) -> None:
    assert refusal(shell, "%%train\n%%bash\nls") == one_thing(
        "cell [2], line 2: %%bash does not run Python code of this notebook; remove it from the cell."
    )


def test_a_cell_that_trains_twice(shell: InteractiveShell) -> None:
    assert refusal(shell, "%%train\n%%train\nx = 1") == one_thing(
        "cell [2] contains %%train twice; remove one of them."
    )


def test_a_cell_number_that_never_ran(shell: InteractiveShell) -> None:
    assert refusal(shell, "%%train --with-cell 9\nx = 1") == one_thing(
        "--with-cell 9: no cell with this number has run in this kernel. The nearest is --with-cell 1."
    )


def test_all_problems_are_reported_at_once(shell: InteractiveShell) -> None:
    said = refusal(shell, "%%train -o b\nprint(aaa)\ninput()")

    assert said.startswith("Not submitted: 3 errors to fix first.\n- ")
    assert len(said.splitlines()) == 4


def test_names_of_cells_that_never_ran_are_one_error(shell: InteractiveShell) -> None:
    assert refusal(shell, "%%train\nnet = build(data)\nfit(net)\nprint(aaa)") == one_thing(
        "cell [2] reads `build` (line 2), `data` (line 2), `fit` (line 3), `aaa` (line 4), which no executed cell "
        "defines. Run the cells that define them first. "
        "After a restart of the kernel, Run > Run All Above Selected Cell does this."
    )


def test_refusal_does_not_open_the_debugger(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bool] = []
    monkeypatch.setattr(shell, "debugger", lambda force=False: opened.append(force))
    shell.call_pdb = True

    refusal(shell, "%%train\nprint(zzz)")
    refusal(shell, "%dlaas attach")
    assert opened == []
    assert shell.call_pdb, "%pdb stays on"

    shell.run_cell("1 / 0", store_history=True)
    assert opened == [True]


# ------------------------------------------------------------------------------------------------------------ the line

LINES = {
    "--gpus": "expected one argument. For all options: %%train?",
    "--gpuss 2": "unknown option --gpuss. Did you mean --gpus?",
    "--gpu 2": "unknown option --gpu. Did you mean --gpus?",
    "--e 2": "unknown option --e. Did you mean --elastic, --env or --epochs?",
    "--xyzzy": "unknown option --xyzzy. For all options: %%train?",
    "one two": "unexpected argument: two. For all options: %%train?",
    "--gpus 4:1": "gpus: minimum 4 exceeds maximum 1; use 1:4",
    "--gpus many": "gpus: 'many' is not valid; use N or MIN:MAX, such as 2 or 1:4",
    "--gpus 0:4": "gpus: the minimum is 1; use 1:4. To release all devices, halt the job",
    "--gpus 3 --gpus-per-learner 2": "gpus: 3 is not a multiple of the 2 GPUs per learner; use 4",
    "--gpus 2 --learners 2": "gpus: set either gpus or learners, not both",
    "--cpus few": "cpus: 'few' is not a number; use 2 or 0.5",
    "--gpus 2 --gpus-per-learner 0": (
        "gpus: 2 contradicts 0 GPUs per learner; for learners without GPUs, set learners instead of gpus"
    ),
    "--memory lots": "memory: 'lots' is not a memory size; use 8G or 512M",
    "--memory 5": "memory: '5' is only 5 bytes; use a unit, such as 8G or 512M",
    "--priority urgent": "priority: 'urgent' is not valid; use low, normal, high or a whole number",
    "--max-time soon": "max time: 'soon' is not a duration; use 45s, 30m, 2h or 1h30m",
    "--max-time 0s": "max time: '0s' is too short; the minimum is 1s",
    "--checkpoint-every often": "checkpoint every: 'often' is not a duration; use 45s, 30m, 2h or 1h30m",
    "--epochs 0": "epochs: 0 is too small; the minimum is 1",
    "--retries some": "retries: 'some' is not a whole number",
    "--placement near": "placement: 'near' is not valid; use one of pack, spread",
    "--elastic on": "elastic: 'on' is not valid; use off, manual, auto or auto:CONDITION, such as auto:efficiency=0.2",
    "--autolog maybe": "autolog: 'maybe' is not valid; use on or off",
    "-o 2x": "-o: '2x' is not a valid variable name",
    "--push a-b": "--push: 'a-b' is not a valid variable name",
    "--with-cell x": "--with-cell: 'x' is not a whole number",
    "--env NOT_SET_ANYWHERE": "env: NOT_SET_ANYWHERE is not set in this environment; use NOT_SET_ANYWHERE=VALUE",
    "--env 1=2": "env: '1' is not a valid environment variable name",
    "--metric 'loss": "a quotation mark is not closed; close or remove it.",
    "--metric loss\\": "the line ends with a backslash; remove it.",
    "--metric 'loss (['": (
        "metric: 'loss ([' is not a regular expression (unterminated character set at position 6); "
        "use one such as 'loss: ([0-9.]+)'"
    ),
    "--metric loss": ("metric: 'loss' matches no number; use a pattern with a group for it, such as 'loss: ([0-9.]+)'"),
    "--framework caffe": "framework: 'caffe' is not valid; use torch, jax or tensorflow, or omit it",
    "my/name": "'my/name' is not a valid job name: use letters, digits, _ and -, starting with a letter",
    "--data d=http://x": "--data is not available yet. Load the data in a cell, or send files with --include PATH.",
    "--schedule 'at 30: 4'": "schedule: 'at 30: 4' is not valid; use 'epoch 30: 4 gpus', several separated by commas",
    "--image repo/it": "--image is not available yet. Omit it: the job runs in this kernel's own environment.",
    "--secret NOT_SET_ANYWHERE": (
        "secret: NOT_SET_ANYWHERE is not set in this environment. Set it first, for example: "
        'os.environ["NOT_SET_ANYWHERE"] = getpass.getpass()'
    ),
    "--secret NAME=hf_0123": "secret: use only the name, NAME; a value would stay readable in the notebook",
    "--preflight": (
        "--preflight is not available yet. --dry-run checks the cell and the pool without starting anything."
    ),
    "--placement topology": (
        "--placement topology is not available yet. --placement pack places the learners on as few nodes as possible."
    ),
}


@pytest.fixture(scope="module")
def shell_for_lines() -> Iterator[InteractiveShell]:
    """One for all lines, which leave nothing behind: a new shell takes longer than all they do."""
    with new_shell() as one:
        yield one


@pytest.mark.parametrize("line", LINES)
def test_invalid_magic_line(shell_for_lines: InteractiveShell, line: str) -> None:
    cell = shell_for_lines.execution_count
    said = refusal(shell_for_lines, f"%%train {line}\nx = a = 1")

    prefix = "argument --gpus: " if line == "--gpus" else ""
    assert said == one_thing(f"cell [{cell}], line 1: {prefix}{LINES[line]}")


def test_a_file_to_include_that_is_not_there(shell: InteractiveShell, tmp_path: Path) -> None:
    assert refusal(shell, "%%train --include data/x.csv\nx = 1") == one_thing(
        f"cell [2], line 1: include: there is no data/x.csv in {tmp_path}."
    )


def test_a_refusal_shows_no_traceback_of_ours(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    refusal(shell, "%%train\nprint(zzz)")

    shown = capsys.readouterr().out.strip().splitlines()
    assert shown[0] == "Not submitted: 1 error to fix first."
    assert len(shown) == 2


def test_unknown_dlaas_command(shell: InteractiveShell) -> None:
    refused = refusal(shell, "%dlaas fly")
    assert refused.startswith("%dlaas: unknown verb 'fly'. Use one of jobs, attach, logs, why,")
    assert "submit" not in refused
    assert refusal(shell, "%dlaas jbos") == "%dlaas: unknown verb 'jbos'. Did you mean jobs?"
    assert refusal(shell, "%dlaas scale x") == "%dlaas scale: the following arguments are required: N"
    assert refusal(shell, "%dlaas halt") == "%dlaas halt: give the NAME of one or more jobs, or --state"
    assert refusal(shell, "%dlaas attach") == "%dlaas attach: requires one job, such as %dlaas attach resnet-48."
    assert refusal(shell, "%dlaas why 'x") == "%dlaas: a quotation mark is not closed; close or remove it."


# ----------------------------------------------------------------------------------------------- the shell around it


def test_the_magic_explains_itself(shell: InteractiveShell) -> None:
    text = shell.inspector.info(shell.find_cell_magic("train"))["docstring"] or ""

    for option in ("--gpus", "--push", "--with-cell", "--dry-run", "--wait", "--checkpoint-every", "--secret", "-o"):
        assert option in text
    assert "%%train [--gpus" in text
    assert "--image" not in text, "what is not there yet is not offered"


def test_tab_completes_options_and_verbs(shell: InteractiveShell) -> None:
    def offered(line: str) -> list[str]:
        with provisionalcompleter():
            return [one.text for one in shell.Completer.completions(line, len(line))]

    assert "--gpus-per-learner" in offered("%%train net --gpus")
    assert "resume" in offered("%dlaas re")


def test_the_name_dlaas_is_bound_when_it_is_free() -> None:
    with new_shell() as one:
        assert run(one, "dlaas.__name__") == "jupyter_dlaas"
        assert "dlaas" not in one.run_line_magic("who_ls", "")
        one.run_line_magic("unload_ext", "jupyter_dlaas")
        assert "dlaas" not in one.user_ns
        assert one.find_cell_magic("train") is None


def test_user_variable_dlaas_is_kept() -> None:
    with new_shell(loaded=False) as one:
        run(one, "dlaas = 3\n%load_ext jupyter_dlaas")
        assert run(one, "dlaas") == 3
