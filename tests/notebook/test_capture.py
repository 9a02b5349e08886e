"""The rules of the slice, one sentence each."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.analysis.model import ExecutedCell, KernelFacts, NameFact, OwnModule, ResultRef, TrainingCell
from jupyter_dlaas.capture.capture import capture
from tests.notebook.cases import codes, facts, job, prelude


def test_only_code_that_the_training_cell_needs_is_captured() -> None:
    made = job("x = 1\ny = 2", "z = x + y\nw = 3", train="print(z)")

    assert prelude(made) == ["x = 1", "y = 2", "z = x + y"]
    assert [left.source for left in made.left_out] == ["w = 3"]


def test_the_last_binding_in_force_wins() -> None:
    assert prelude(job("x = 1", "x = 2")) == ["x = 2"]


def test_cells_count_in_the_order_in_which_they_ran() -> None:
    assert prelude(job("x = a = 2", "a = 5", "x = a * 2")) == ["a = 5", "x = a * 2"]


def test_a_change_that_ran_twice_is_made_twice() -> None:
    assert prelude(job("x = []", "x.append(1)", "x.append(1)")) == ["x = []", "x.append(1)", "x.append(1)"]


def test_a_branch_that_may_not_bind_keeps_the_earlier_binding() -> None:
    assert prelude(job("x = 1\nflag = False", "if flag:\n    x = 2")) == [
        "x = 1",
        "flag = False",
        "if flag:",
        "    x = 2",
    ]


def test_both_branches_together_replace_the_earlier_binding() -> None:
    made = job("flag = 1\nx = 1", "if flag:\n    x = 2\nelse:\n    x = 3")

    assert "x = 1" not in prelude(made)


def test_list_filled_in_a_loop_is_filled_in_the_job() -> None:
    made = job("files = [1, 2]\nx = []", "for f in files:\n    x.append(f)\n    print(f)")

    assert "    x.append(f)" in prelude(made)


def test_changes_are_followed_through_loop_variables() -> None:
    made = job(
        "import torch\nmodel = torch.nn.Linear(2, 2)\nparameters = list(model.parameters())",
        "for p in parameters:\n    p.requires_grad = False",
        train="print(model)",
    )

    assert "    p.requires_grad = False" in prelude(made)


def test_changes_are_followed_through_another_name_of_the_object() -> None:
    made = job("x = {}\nx['a'] = []", "inner = x['a']", "inner.append(1)")

    assert prelude(made)[-2:] == ["inner = x['a']", "inner.append(1)"]


def test_item_and_attribute_assignments_change_the_object() -> None:
    made = job("class C: pass\nx = C()\nx.items = {}", "x.items['k'] = 1\nx.size = 3", "y = 5\ny += 1")

    assert prelude(made)[-3:] == ["x.items = {}", "x.items['k'] = 1", "x.size = 3"]


def test_function_that_mutates_its_argument_is_followed_through_an_assignment() -> None:
    made = job("def fill(d):\n    d['k'] = 1\n    return 1", "x = {}", "done = fill(x)")

    assert prelude(made)[-1] == "done = fill(x)"


def test_an_own_function_that_only_computes_is_not_run_again() -> None:
    made = job("def total(d):\n    return sum(d)", "x = [1]", "result = total(x)\ntotal(x)")

    assert prelude(made) == ["x = [1]"]


def test_a_function_that_changes_a_global_object_is_run() -> None:
    made = job("x = []\ndef add(v):\n    x.append(v)", "add(3)")

    assert prelude(made)[-1] == "add(3)"


def test_a_function_that_binds_a_global_is_run() -> None:
    made = job("x = 0\ndef up():\n    global x\n    x += 1", "up()")

    assert prelude(made)[-1] == "up()"


def test_names_in_function_bodies_are_needed_at_the_call() -> None:
    made = job("def f(v):\n    return g(v) * SCALE", "def g(v):\n    return v + 1", "SCALE = 3", train="f(1)")

    assert {"def g(v):", "SCALE = 3"} <= set(prelude(made))


def test_only_the_last_version_of_an_edited_function_is_captured() -> None:
    made = job("def f(): return g()", "def g(): return 1", "def g(): return 2", train="f()")

    assert prelude(made) == ["def f(): return g()", "def g(): return 2"]


def test_call_between_edits_uses_the_version_of_that_time() -> None:
    made = job("def g(): return 1", "x = g()", "def g(): return 2", train="print(x, g())")

    assert prelude(made) == ["def g(): return 1", "x = g()", "def g(): return 2"]


def test_a_class_patched_in_a_later_cell_stays_patched() -> None:
    made = job("class Net: pass", "x = Net()", "def forward(self): return 1", "Net.forward = forward")

    assert prelude(made)[-1] == "Net.forward = forward"


def test_seeds_and_global_setup_are_always_kept() -> None:
    made = job(
        "import random, sys, os\nrandom.seed(0)\nsys.path.append('lib')\nos.environ['A'] = '1'",
        "def seed_all(n):\n    random.seed(n)\nseed_all(3)",
        train="print(1)",
    )

    assert prelude(made) == [
        "import random, sys, os",
        "random.seed(0)",
        "sys.path.append('lib')",
        "os.environ['A'] = '1'",
        "def seed_all(n):",
        "    random.seed(n)",
        "seed_all(3)",
    ]


def test_star_imports_come_only_while_a_name_would_be_unbound() -> None:
    without = job("from math import *\nx = 1")
    needed = job("from math import *\nx = floor(1.5)")

    assert prelude(without) == ["x = 1"]
    assert prelude(needed) == ["from math import *", "x = floor(1.5)"]


def test_a_rebound_builtin_is_the_users_name() -> None:
    assert prelude(job("input = [1, 2]", train="print(input)")) == ["input = [1, 2]"]


def test_a_builtin_given_back_by_del_is_the_builtin() -> None:
    assert prelude(job("list = 5", "del list", train="print(list)")) == []


def test_deleted_name_is_undefined_and_its_cell_is_named() -> None:
    made = job("x = 1", "del x")

    assert [e.message for e in made.errors] == [
        (
            "cell [3], line 2, reads `x`, which no executed cell defines (cell [2], line 1 deleted it). "
            "Run the cell that defines `x`, or define it here."
        )
    ]


def test_pictures_and_prints_stay_in_the_notebook() -> None:
    made = job("import matplotlib.pyplot as plt\nx = [1]", "plt.plot(x)\nprint(x)\nx")

    assert prelude(made) == ["x = [1]"]
    assert {left.kind for left in made.left_out} == {"unneeded", "shown"}


def test_magics_and_shell_lines_are_left_out_and_listed() -> None:
    made = job("%matplotlib inline\n!pip install torch\nx = 1", "%%bash\necho hi", "pip install numpy")

    assert prelude(made) == ["x = 1"]
    assert [(left.cell, left.line, left.source) for left in made.left_out if left.kind == "magic"] == [
        ("cell [1]", 1, "%matplotlib inline"),
        ("cell [1]", 2, "!pip install torch"),
        ("cell [2]", 1, "%%bash"),
        ("cell [3]", 1, "pip install numpy"),
    ]


def test_magics_that_only_wrap_are_unwrapped() -> None:
    made = job("%%time\nx = 1", "%%capture\n%%time\ny = 2", "%time z = 3", train="print(x, y, z)")

    assert prelude(made) == ["x = 1", "y = 2", "z = 3"]


def test_magic_inside_a_block_is_removed_and_the_block_stays() -> None:
    made = job("x = 0\nif True:\n    %matplotlib inline\n    x = 1")

    assert prelude(made) == ["if True:", "    pass", "    x = 1"]


def test_a_file_that_was_run_counts_as_its_text() -> None:
    made = job("%run -i prepare.py", facts=KernelFacts(files={"prepare.py": "x = 1\ny = 2\n"}))

    assert prelude(made) == ["x = 1"]
    assert made.kept[0].cell == "prepare.py, run by cell [1]"


def test_earlier_training_is_left_out_with_advice() -> None:
    made = job(
        "model = Net = object()\nopt = Adam = object()",
        "for epoch in range(2):\n    loss = model.loss()\n    loss.backward()\n    opt.step()",
        train="model.fit(opt)",
    )

    assert "    opt.step()" not in prelude(made)
    assert codes(made) == ["earlier_training"]
    assert "--push" in made.warnings[0].message
    assert "or --with-cell 2 to run that cell" in made.warnings[0].message


def test_with_cell_brings_an_earlier_training_in() -> None:
    made = job("model = object()", "for i in range(2):\n    model.loss().backward()", train="model()", with_cells=(2,))

    assert "    model.loss().backward()" in prelude(made)
    assert codes(made) == []


def test_a_scaler_that_was_fitted_is_no_training() -> None:
    made = job(
        "from sklearn.preprocessing import StandardScaler\nfrom sklearn.svm import SVC",
        "X = [[1.0], [2.0]]\nscaler = StandardScaler()\nscaler.fit(X)",
        "clf = SVC()\nclf.fit(scaler.transform(X), [0, 1])",
        train="clf.fit(scaler.transform(X), [1, 0])",
    )

    assert "scaler.fit(X)" in prelude(made)
    assert "clf.fit(scaler.transform(X), [0, 1])" not in prelude(made)


def test_an_answer_to_input_becomes_a_literal() -> None:
    made = job("n = input('how many')\nn = int(n)", train="print(n)", facts=facts(n=4))

    assert prelude(made) == ["n = 4  # the kernel's value: cell [1], line 1 got it from input()"]


def test_irreproducible_value_is_an_error_with_advice() -> None:
    table = NameFact(type_name="pandas.DataFrame", size_bytes=12_000_000, shape="(100, 3)")
    made = job("x = load(input())", facts=facts(x=table, load=NameFact(type_name="function")))

    assert [e.message for e in made.errors if e.names == ("x",)] == [
        (
            "cell [2], line 2, needs `x` (pandas.DataFrame, (100, 3), 12.0 MB), which the job cannot recreate: "
            "cell [1], line 1 got it from input(). Use --push x to send its current value."
        )
    ]


def test_name_bound_by_no_cell_is_written_or_requested() -> None:
    written = job(train="print(x)", facts=facts(x=3))
    asked = job(train="print(x)", facts=facts(x=NameFact(type_name="Net")))

    assert prelude(written) == ["x = 3  # the kernel's value: no recorded cell defines it"]
    assert codes(asked) == ["not_reproducible"]


def test_statements_behind_the_line_that_raised_never_ran() -> None:
    made = job("x = 1\ny = 1 / 0\nx = 2", raised={1: 2})

    assert prelude(made) == ["x = 1"]


def test_failed_run_of_a_repeated_cell_is_not_listed() -> None:
    made = job("x = a", "a = 1", "x = a", "1 / 0", raised={1: 1, 4: 1})

    assert [(left.cell, left.source) for left in made.left_out if left.kind == "raised"] == [("cell [4]", "1 / 0")]


def test_definitions_of_a_cell_that_raised_somewhere_are_kept() -> None:
    made = job("import math\ndef x(): return math.pi\nboom()", raised={1: None})

    assert prelude(made) == ["import math", "def x(): return math.pi"]


def test_a_result_of_an_earlier_job_is_taken_by_reference() -> None:
    fact = NameFact(type_name="Net", result=ResultRef("resnet-48", "x", after_cell=1))
    made = job("class Net: pass", "x.scale = 2", facts=facts(x=fact))

    assert prelude(made)[-2:] == ['x = dlaas.result("resnet-48", "x")', "x.scale = 2"], "as the kernel did afterwards"
    assert made.results == (ResultRef("resnet-48", "x", after_cell=1),)


def test_pushed_names_are_loaded_after_their_classes() -> None:
    made = job(
        "class Net: pass",
        "model = Net()\nopt = [model]",
        "model.trained = True",
        train="print(model, opt)",
        push=("model", "opt"),
    )

    assert prelude(made) == [
        "import jupyter_dlaas as dlaas",
        "class Net: pass",
        'model, opt = dlaas.pushed("model", "opt")',
    ]
    assert made.pushed == ("model", "opt")


def test_an_optimiser_over_a_pushed_model_is_named() -> None:
    made = job("model = [1]\nopt = SGD = model\nopt = [model]", train="print(model, opt)", push=("model",))

    assert codes(made) == ["push_fresh"]
    assert "`opt`" in made.warnings[0].message
    assert "--push model,opt" in made.warnings[0].message


def test_names_for_o_must_be_bound_by_something() -> None:
    made = job("x = 1", train="history = [x]", outputs=("histroy", "history", "x"))

    assert [e.message for e in made.errors] == [
        "-o histroy: `histroy` is not defined in the training cell or before it. Did you mean -o history?"
    ]


def test_an_undefined_name_is_an_error_with_cell_and_line() -> None:
    made = job("model = 1", train="a = 1\nprint(modle)")

    assert [e.message for e in made.errors] == [
        "cell [2], line 3, reads `modle`, which no executed cell defines. Did you mean `model`?"
    ]
    assert made.unbound == ("modle",)


def test_function_that_may_read_an_unknown_name_is_a_warning() -> None:
    made = job("def f(v):\n    return v or unknown", train="f(1)")

    assert codes(made) == ["late_undefined"]


def test_input_in_the_training_cell_is_an_error() -> None:
    made = job(train="n = 1\nx = input()")

    assert [e.message for e in made.errors] == [
        "cell [1], line 3: input() does not work in a job. Call it in an earlier cell and use the variable here."
    ]


def test_files_that_every_learner_would_write_are_warned_about() -> None:
    cell = "import torch\ntorch.save(1, 'm.pt')\nif run.is_main:\n    torch.save(1, 'n.pt')\n"
    alone, many = job("run = 1", train=cell), job("run = 1", train=cell, learners_max=4)

    assert codes(alone) == []
    assert [w.message for w in many.warnings] == [
        (
            "cell [2], line 3: each of up to 4 learners runs torch.save(…), so they overwrite each other's file. "
            "Put it under `if run.is_main:`."
        )
    ]


def test_open_files_and_locks_are_refused_by_push() -> None:
    made = job("x = open('f')", push=("x",), facts=facts(x=NameFact(type_name="file", cannot_travel="an open file")))

    assert "--push x: `x` is an open file and cannot be sent to a job." in made.errors[0].message


def test_a_push_of_more_than_a_gigabyte_is_refused() -> None:
    made = job("x = 1", push=("x",), facts=facts(x=NameFact(type_name="Tensor", size_bytes=2**31)))

    assert codes(made) == ["push_too_big"]


def test_a_misspelt_push_and_an_unknown_cell_are_corrected() -> None:
    made = job("model = 1", train="1", push=("modle",), with_cells=(7,), facts=facts(model=1))

    assert [e.message for e in made.errors] == [
        "--with-cell 7: no cell with this number has run in this kernel. The nearest is --with-cell 1.",
        "--push modle: the kernel has no `modle`. Did you mean --push model?",
    ]


def test_a_syntax_error_in_the_training_cell_names_its_line() -> None:
    made = job(train="x = 1\nfor")

    assert (made.errors[0].code, made.errors[0].line) == ("syntax_error", 3)


def test_slow_cells_are_reported_with_a_push_option() -> None:
    made = capture(
        [ExecutedCell(count=1, source="x = load = sum([1])", duration_s=45.0)],
        TrainingCell(count=2, source="print(x)"),
    )

    assert [w.message for w in made.warnings] == [
        "the cells that the job runs again took 45 s here, mostly cell [1] (45 s). To send their result: --push x."
    ]


def test_strings_over_several_lines_keep_their_text() -> None:
    made = job(train='x = """a\n  b\nc"""\nassert x == "a\\n  b\\nc"\ny = f"""\n{x}\n"""')
    space: dict[str, object] = {"__name__": "__main__"}
    exec(compile(made.text, "train.py", "exec"), space)

    assert space["x"] == "a\n  b\nc"
    assert space["y"] == "\na\n  b\nc\n"


def test_each_line_knows_its_cell() -> None:
    made = job("\n\nimport math\nx = math.pi", "%%time\n# why\ny = 2 * x", train="print(y)\nprint(x)")
    places = {made.text.splitlines()[ref.line - 1].strip(): (ref.cell, ref.cell_line) for ref in made.lines}

    assert places["x = math.pi"] == ("cell [1]", 4)
    assert places["y = 2 * x"] == ("cell [2]", 3)
    assert places["print(x)"] == ("cell [3]", 3)
    assert made.where(len(made.text.splitlines())) == "cell [3], line 3"


def test_rerun_cell_is_named_by_its_present_number() -> None:
    made = job("def f(): return 1", "x = f()", "def f(): return 1", train="print(x)")

    assert [kept.cell for kept in made.kept] == ["cell [3]", "cell [2]"]


def test_a_definition_that_ran_again_unchanged_stands_there_once() -> None:
    made = job("def f(): return 1", "x = f()", "def f(): return 1", train="print(x, f())")
    edited = job("def f(): return 1", "x = f()", "def f(): return 2", train="print(x, f())")

    assert prelude(made) == ["def f(): return 1", "x = f()"]
    assert prelude(edited) == ["def f(): return 1", "x = f()", "def f(): return 2"]


def test_a_constant_that_changed_in_between_is_set_again() -> None:
    made = job("n = 1", "x = [n]", "n = 2", "x.append(n)", "n = 1", train="print(x, n)")

    assert prelude(made) == ["n = 1", "x = [n]", "n = 2", "x.append(n)", "n = 1"]


def test_future_imports_go_first_and_make_annotations_harmless() -> None:
    made = job("from __future__ import annotations\ndef f(x: Unknown) -> Nothing: return x", train="f(1)")

    assert prelude(made)[0] == "from __future__ import annotations"
    assert codes(made) == []


def test_top_level_await_becomes_a_coroutine() -> None:
    made = job("import asyncio\nx = await asyncio.sleep(0, 5)", train="y = await asyncio.sleep(0, x)\nassert y == 5")
    exec(compile(made.text, "train.py", "exec"), {"__name__": "__main__"})

    assert made.is_ready


def test_dlaas_is_imported_where_the_cell_uses_it() -> None:
    made = job(train="run = dlaas.run()", facts=facts(dlaas=NameFact(type_name="module")))

    assert prelude(made) == ["import jupyter_dlaas as dlaas"]
    assert made.is_ready


def test_capture_imports_only_the_standard_library_and_ipython() -> None:
    code = (
        "import sys\nfrom jupyter_dlaas.capture import capture\n"
        "print([m for m in ('torch', 'numpy', 'IPython', 'tornado') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_optimiser_made_before_the_pushed_model_is_refused() -> None:
    made = job(
        "model = [1]",
        "opt = [model]",
        "class Helper: pass",
        "model.append(Helper())",
        train="print(model, opt)",
        push=("model",),
        facts=facts(
            model=NameFact(type_name="list", main_names=("Helper",)),
            opt=NameFact(type_name="list"),
            Helper=NameFact(type_name="type", is_immutable=True),
        ),
    )

    assert [e.message for e in made.errors] == [
        ("cell [2], line 1: `opt` would refer to a different `model` than the pushed one. Push both: --push model,opt.")
    ]


def test_own_modules_are_copied_once_one_of_them_is_imported() -> None:
    own = KernelFacts(own_modules=(OwnModule("helpers", "helpers.py", is_edited=True), OwnModule("deep", "deep.py")))
    used = job("import helpers\nimport json", train="helpers.f()", facts=own)
    unused = job("import json", train="json.dumps(1)", facts=own)

    assert [module.name for module in used.modules] == ["helpers", "deep"]
    assert codes(used) == ["module_edited"]
    assert unused.modules == ()


def test_needed_result_of_an_earlier_training_is_recomputed_with_notice() -> None:
    made = job(
        "model = object()",
        "history = model.fit([1])",
        train="model.fit([2])\nprint(history)",
    )

    assert prelude(made)[-1] == "history = model.fit([1])"
    assert codes(made) == ["training_again"]


def test_training_in_nested_functions_is_recognised() -> None:
    made = job(
        "model = Net = object()\nopt = object()",
        "def step(m, o):\n    m.loss().backward()\n    o.step()",
        "def train(m, o):\n    for _ in range(2):\n        step(m, o)",
        "train(model, opt)",
        train="train(model, opt)",
    )

    assert "train(model, opt)" not in prelude(made)
    assert [w.names for w in made.warnings] == [("model", "opt")]


def test_a_model_that_its_training_returns_starts_fresh() -> None:
    made = job(
        "def fit(m):\n    m.loss().backward()\n    return m",
        "model = object()",
        "model = fit(model)",
        train="model = fit(model)",
    )

    assert prelude(made)[-1] == "model = object()"
    assert codes(made) == ["earlier_training"]


def test_small_value_of_an_earlier_training_becomes_a_literal() -> None:
    made = job(
        "model = object()",
        "for epoch in range(3):\n    model.loss().backward()\n    best = 0.5",
        train="print(model, best)",
        facts=facts(best=0.5, model=NameFact(type_name="Net")),
    )

    assert "best = 0.5  # the kernel's value: cell [2], line 1 created it during training" in prelude(made)
    assert made.is_ready


def test_comments_above_a_statement_stay_with_it() -> None:
    made = job("# how far\n# to look\nx = 1  # steps\n\n# unrelated\ny = 2")

    assert "# how far\n# to look\nx = 1  # steps" in made.text
    assert "unrelated" not in made.text


def test_two_statements_on_one_line_are_two_statements() -> None:
    assert prelude(job("a = 1; x = 2; b = 3")) == ["x = 2"]


def test_a_train_line_twice_and_a_foreign_magic_are_refused() -> None:
    assert codes(job(train="%%train\nx = 1")) == ["train_twice"]
    assert codes(job(train="%%bash\nls")) == ["not_python"]
    assert codes(job(train="# nothing yet")) == ["empty_cell"]


def test_time_under_train_is_unwrapped() -> None:
    made = job(train="%%time\nx = 1\nprint(x)")

    assert made.text.endswith('if __name__ == "__main__":\n    x = 1\n    print(x)\n')
    assert made.where(len(made.text.splitlines())) == "cell [1], line 4"


@given(st.lists(st.text(alphabet="abx=()[]:\n %!'\"#1\\\\", max_size=60), max_size=4), st.text(max_size=40))
def test_whatever_is_typed_capture_answers_in_words(sources: list[str], train: str) -> None:
    made = job(*sources, train=train)

    assert made.is_ready or all(problem.message for problem in made.errors)


def test_file_saved_by_the_notebook_is_read_and_not_rewritten() -> None:
    made = job(
        "import torch\nmodel = torch.nn.Linear(2, 2)",
        "model(torch.ones(2)).sum().backward()",
        "torch.save(model.state_dict(), 'best.pt')",
        "model.load_state_dict(torch.load('best.pt'))",
        train="model.train()",
    )

    assert prelude(made)[-1] == "model.load_state_dict(torch.load('best.pt'))"
    assert [left.kind for left in made.left_out if "torch.save" in left.source] == ["saved"]


def test_only_names_that_a_training_changes_are_reported() -> None:
    made = job(
        "model = Net = object()\nopt = SGD(model)\nloader = [1]\ndef SGD(m): return m",
        "def train_epoch(m, data, o):\n    for b in data:\n        m(b).backward()\n        o.step()\n    return 1",
        "for e in range(2):\n    loss = train_epoch(model, loader, opt)",
        train="train_epoch(model, loader, opt)",
    )

    assert [w.names for w in made.warnings if w.code == "earlier_training"] == [("model", "opt")]
