"""Results of earlier jobs in later ones: in one object graph, connected with what was made from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_dlaas.analysis.model import EarlierJob, NameFact, ResultRef
from tests.notebook.cases import codes, facts, job, prelude


def result_of(
    job: str, name: str, type_name: str = "Net", *, is_restored: bool = False, has_weights: bool = False
) -> NameFact:
    """Return a variable of the kernel that a job returned after cell 3, or after the last cell."""
    ref = ResultRef(job, name, after_cell=3, is_restored=is_restored)
    return NameFact(type_name=type_name, result=ref, has_weights=has_weights)


def test_results_of_each_job_are_loaded_in_one_line() -> None:
    known = facts(
        model=result_of("first-1", "model"), opt=result_of("first-1", "opt"), best=result_of("second-2", "best")
    )
    made = job("%%train first -o model,opt\nmodel, opt = 1, 2", train="print(model, opt, best)", facts=known)

    assert prelude(made)[1:] == [
        'best = dlaas.result("second-2", "best")',
        'model, opt = dlaas.result("first-1", "model", "opt")',
    ]
    assert [ref.name for ref in made.results] == ["best", "model", "opt"]


def test_the_next_job_takes_only_those_results_that_it_needs() -> None:
    known = facts(model=result_of("first-1", "model"), opt=result_of("first-1", "opt"))
    made = job("%%train first -o model,opt\nmodel, opt = 1, 2", train="print(opt)", facts=known)

    assert prelude(made)[1:] == ['opt = dlaas.result("first-1", "opt")']


def test_changes_after_a_wait_apply_to_the_result() -> None:
    waits = "losses = []\njob.wait()\nlosses.append(3)"
    ref = ResultRef("first-1", "losses", after_cell=2, after_line=2)
    known = facts(losses=NameFact(type_name="list", result=ref))
    made = job("%%train first -o losses\nlosses = [1]", waits, train="print(losses)", facts=known)

    assert prelude(made)[1:] == ['losses = dlaas.result("first-1", "losses")', "losses.append(3)"]


RESULT = ResultRef("first-1", "box", after_cell=3, is_restored=True)
MODEL = "model = Linear()\nopt = SGD(model.parameters())"
AGAIN = "%%train first -o model\nopt.step()"


def test_result_is_loaded_into_the_model_of_an_optimiser() -> None:
    known = facts(model=result_of("first-1", "model", is_restored=True), opt=NameFact(type_name="SGD"))
    made = job("from torch import Linear, SGD", MODEL, AGAIN, train="model(1)\nopt.step()", facts=known)

    assert prelude(made)[-3:] == [
        *MODEL.splitlines(),
        'model = dlaas.result("first-1", "model", into={"model": model})',
    ]
    assert codes(made) == []


def test_alias_of_a_restored_model_is_the_trained_one() -> None:
    known = facts(model=result_of("first-1", "model", is_restored=True), net=NameFact(type_name="Linear"))
    made = job("from torch import Linear\nnet = model = Linear()", AGAIN, train="print(net)", facts=known)

    assert prelude(made)[-1] == 'model = dlaas.result("first-1", "model", into={"model": model})'


BOX = "from torch import Linear, SGD\nmodel = Linear()\nopt = SGD(model.parameters())\nbox = Box(model)"


@pytest.mark.parametrize(
    ("train", "is_loaded"), [("opt.step()", True), ("opt.step()\nprint(box)", True), ("print(Linear)", False)]
)
def test_result_is_loaded_for_the_names_of_its_parts(train: str, is_loaded: bool) -> None:
    box = NameFact(type_name="Box", result=replace(RESULT, parts=frozenset({"model"})))
    known = facts(box=box, model=NameFact(type_name="Linear"), opt=NameFact(type_name="SGD"))
    made = job("class Box: pass", BOX, "%%train first -o box\nbox.fit()", train=train, facts=known)

    line = 'box = dlaas.result("first-1", "box", into={"box": box})'
    assert (prelude(made)[-1] == line) is is_loaded
    assert ("box = Box(model)" in prelude(made)) is is_loaded


def test_model_of_a_later_cell_does_not_need_the_result() -> None:
    box = NameFact(type_name="Box", result=replace(RESULT, parts=frozenset({"model"})))
    known = facts(box=box, model=NameFact(type_name="Linear"))
    first = "%%train first -o box\nbox.fit()"
    made = job("class Box: pass", BOX, first, "model = Linear()", train="print(model)", facts=known)

    assert prelude(made)[-1] == "model = Linear()"
    assert "result" not in made.text


def test_unreferenced_result_is_loaded_without_the_old_object() -> None:
    known = facts(model=result_of("first-1", "model", is_restored=True))
    made = job("from torch import Linear\nmodel = Linear()", AGAIN, train="print(model)", facts=known)

    assert prelude(made)[-1] == 'model = dlaas.result("first-1", "model")'
    assert "model = Linear()" not in prelude(made)


def test_optimiser_over_a_replaced_model_is_refused() -> None:
    known = facts(
        model=result_of("first-1", "model", has_weights=True), opt=NameFact(type_name="SGD", has_weights=True)
    )
    made = job("from torch import Linear, SGD", MODEL, AGAIN, train="model(1)\nopt.step()", facts=known)

    assert [problem.code for problem in made.errors] == ["result_apart"]
    assert made.errors[0].message == (
        "cell [2], line 2: `opt` would not refer to the `model` that first-1 returned. "
        "Create `opt` again in a later cell, or in the training cell."
    )


def test_value_from_a_replaced_result_uses_the_old_one() -> None:
    known = facts(level=result_of("first-1", "level", "int"), table=NameFact(type_name="list"))
    made = job("level = 1\ntable = [level]", AGAIN, train="print(level, table)", facts=known)

    assert prelude(made)[1:] == ["level = 1", "table = [level]", 'level = dlaas.result("first-1", "level")']
    assert codes(made) == []


def test_pushed_optimiser_with_a_result_model_is_refused() -> None:
    known = facts(model=result_of("first-1", "model"), opt=NameFact(type_name="SGD", shares=("model",)))
    made = job("x = 1", AGAIN, train="model(1)\nopt.step()", push=("opt",), facts=known)

    assert [problem.code for problem in made.errors] == ["push_apart"]
    assert made.errors[0].message.endswith("Push both: --push opt,model.")


@pytest.mark.parametrize(
    "makes",
    [
        'for i in (0, 1):\n    globals()[f"model_{i}"] = Linear()\n    exec(f"opt_{i} = SGD(model_{i}.parameters())")',
        'model_0 = Linear()\nexec("opt_0 = SGD(model_0.parameters())")',
        'globals().update(model_0=Linear())\nopt_0 = SGD(globals()["model_0"].parameters())',
    ],
)
def test_result_is_loaded_into_a_model_that_a_text_created(makes: str) -> None:
    names = ("model_0", "loss")  # the loss exists only since the first job
    known = facts(opt_0=NameFact(type_name="SGD"), **{n: result_of("second-2", n, is_restored=True) for n in names})
    known = replace(known, jobs=(EarlierJob(job="second-2", cell=3, outputs=names, bound=frozenset({"loss"})),))
    train = 'eval("opt_0").step()\nmodel_0(loss)'
    made = job("from torch import Linear, SGD", makes, AGAIN, train=train, facts=known)

    expected = 'loss, model_0 = dlaas.result("second-2", "loss", "model_0", into={"model_0": model_0})'
    assert prelude(made)[-1] == expected
