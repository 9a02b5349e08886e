"""Names that an earlier job changed and did not return: a later job that uses them says so."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch

from jupyter_dlaas.analysis.model import Capture, EarlierJob, NameFact, ResultRef
from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.kernel.earlier_jobs import EarlierJobs
from jupyter_dlaas.kernel.recorder import facts_of
from jupyter_dlaas.transfer.object_traversal import process_bound_kind
from jupyter_dlaas.wire.protocol import State
from tests.notebook.cases import facts, job

SETUP = """
import torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
plan = torch.optim.lr_scheduler.StepLR(opt, 1)
history, seen, best = [], 0, None
X = torch.ones(2, 2)
class Mean:
    def __init__(self, source): self.value = source.weight.clone()
    def update(self, source): self.value.mul_(0.9)
mean = Mean(model)
"""
LOOP = """
model.train()
for epoch in range(3):
    loss = model(X).mean(); opt.zero_grad(); loss.backward(); opt.step()
    history.append(loss.item())
    seen += 1
    mean.update(model)
plan.step()
best = min(history)
print(X.shape)
"""
KERNEL = facts(
    **{name: NameFact(type_name="object") for name in ("model", "opt", "plan", "history", "mean", "X")}, seen=0, best=0
)


def ran(cell: str = LOOP, *, outputs: tuple[str, ...] = (), count: int = 2, is_completed: bool = True) -> EarlierJob:
    """Return the record of a job whose training cell was this."""
    made = job(SETUP, train=cell)
    assert made.errors == (), made.errors
    return EarlierJob(
        job=f"first-{count}",
        cell=count,
        outputs=outputs,
        altered=frozenset(made.altered),
        bound=frozenset(made.bound),
        is_completed=is_completed,
    )


def after(
    *jobs: EarlierJob, train: str = LOOP, cells: tuple[str, ...] = (), push: tuple[str, ...] = (), **results: str
) -> Capture:
    """Capture a cell after jobs; `results`: the job whose result a name holds."""
    names = dict(KERNEL.names)
    for name, source in results.items():
        names[name] = replace(names[name], result=ResultRef(source, name, after_cell=2, is_restored=True))
    known = replace(KERNEL, names=names, jobs=jobs)
    ran_cells = (SETUP, *(f"%%train\n{LOOP}" for _ in jobs), *cells)
    return job(*ran_cells, train=train, facts=known, push=push)


def reported(made: Capture, code: str = "not_returned") -> list[tuple[str, ...]]:
    return [one.names for one in made.warnings if one.code == code]


def test_state_that_was_not_returned_is_reported_with_its_option() -> None:
    made = after(ran(outputs=("model",)), model="first-2")

    assert reported(made) == [("history", "mean", "opt", "plan", "seen")]
    (text,) = [one.message for one in made.warnings if one.code == "not_returned"]
    assert "first-2 (cell [2]) changed" in text
    assert "-o model," in text
    assert "history,mean,opt,plan,seen" in text


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("print(X.shape)", []),
        ("history = []\nhistory.append(1)", []),
        ("opt = torch.optim.SGD(model.parameters(), lr=1)\nopt.step()", []),
        ("print(best)", [("best",)]),
        ("print(len(history))", [("history",)]),
        ("def show():\n    return history[-1]\nshow()", [("history",)]),
        ("seen += 1", [("seen",)]),
    ],
)
def test_only_used_values_are_reported(train: str, expected: list[tuple[str, ...]]) -> None:
    assert reported(after(ran(outputs=("model",)), train=train, model="first-2")) == expected


def test_job_that_only_reads_is_not_reported() -> None:
    look = "model.eval()\nwith torch.no_grad():\n    print(model(X).mean(), len(history), opt.param_groups)"

    assert reported(after(ran(look))) == []


def test_names_that_a_later_cell_binds_are_not_reported() -> None:
    made = after(ran(outputs=("model",)), cells=("history, seen = [], 0",), train="print(history, seen)")

    assert reported(made) == []


def test_pushed_values_are_not_reported() -> None:
    assert reported(after(ran(outputs=("model",)), train="print(history)", push=("history",))) == []


def test_newest_job_that_changed_a_name_is_reported() -> None:
    first, second = ran(outputs=("history",)), ran(outputs=("model",), count=3)

    (text,) = [one.message for one in after(first, second, train="print(history)", history="first-2").warnings]

    assert text.startswith("first-3 (cell [3]) changed `history`")
    assert reported(after(second, first, train="print(history)", history="first-2")) == []


def test_parts_of_a_result_count_as_returned() -> None:
    first, second = ran(), replace(ran(count=3), outputs=("pair",), loaded=frozenset({"model", "opt"}))

    assert reported(after(first, second, train="print(history, opt)")) == [("history",)]
    assert reported(after(first, train="print(opt)")) == [("model", "opt")]


def test_results_of_a_running_job_are_reported() -> None:
    made = after(ran(outputs=("model", "history"), is_completed=False), train="print(history, seen)")

    assert reported(made, "job_unfinished") == [("history",)]
    assert reported(made) == [("seen",)]
    assert 'dlaas.job("first-2").wait()' in " ".join(one.message for one in made.warnings)


@pytest.mark.parametrize(
    ("outputs", "is_completed", "way"),
    [
        ((), True, "run its cell [2] again with -o trained"),
        (("trained",), False, 'run dlaas.job("first-2").wait()'),
        (("trained",), True, "run %dlaas attach first-2"),
    ],
)
def test_name_that_only_a_job_defined_names_the_way(outputs: tuple[str, ...], is_completed: bool, way: str) -> None:
    made = after(ran("trained = 1", outputs=outputs, is_completed=is_completed), train="print(trained)")

    (error,) = made.errors
    assert "which only first-2 defined" in error.message
    assert way in error.message


COUNTED = (
    "import torch\nclass Net(torch.nn.Module):\n    calls = 0\n    def __init__(self):\n        super().__init__()\n"
    "        self.w = torch.nn.Parameter(torch.ones(1))\n    def forward(self, x):\n"
    "        {count} += 1\n        return x * self.w\nnet = Net()"
)


@pytest.mark.parametrize("outputs", [("net",), ("net", "Net")])
@pytest.mark.parametrize("count", ["Net.calls", "type(self).calls", "self.__class__.calls"])
def test_values_of_a_class_are_reported_with_a_way(count: str, outputs: tuple[str, ...]) -> None:
    setup = COUNTED.format(count=count)
    first = job(setup, train="net(torch.ones(1)).backward()")
    refs = {name: ResultRef(job="first-2", name=name, after_cell=2) for name in outputs}
    kind = NameFact(type_name="type", is_callable=True, result=refs.get("Net"))
    known = facts(Net=kind, net=NameFact(type_name="Net", result=refs["net"]))
    earlier = EarlierJob(job="first-2", cell=2, outputs=outputs, altered=frozenset(first.altered))

    made = job(setup, "%%train\npass", train="print(Net.calls)", facts=replace(known, jobs=(earlier,)))

    (text,) = [one.message for one in made.warnings if one.code == "not_returned"]
    assert "values that belong to `Net`, which -o does not return" in text
    assert "assign it to a variable" in text


@pytest.mark.parametrize(
    ("cells", "train", "is_reported"),
    [
        ((), "print(model.weight.grad.norm())", True),
        ((), "opt.step()", True),
        ((), "opt.zero_grad()\nmodel(X).mean().backward()\nopt.step()", False),
        ((), "model(X).mean().backward()\nprint(model.weight.grad)", False),
        (("model(X).mean().backward()",), "opt.step()", False),
    ],
)
def test_gradients_of_an_earlier_job_are_reported(cells: tuple[str, ...], train: str, is_reported: bool) -> None:
    first = replace(ran(outputs=("model", "opt")), computes_gradients=True)
    made = after(first, train=train, cells=cells, model="first-2", opt="first-2")

    texts = [one.message for one in made.warnings if "uses gradients before it computes any" in one.message]
    assert len(texts) == is_reported
    assert job(SETUP, train=LOOP).computes_gradients


@pytest.mark.parametrize("has_gradients", [True, False])
def test_returned_gradients_are_not_reported(has_gradients: bool) -> None:
    view = SimpleNamespace(id="first-2", state=State.COMPLETED, results=("model",))
    client = SimpleNamespace(job=lambda _: view)
    client.without_start = lambda: client
    earlier = EarlierJobs()
    earlier.note(Job(view, client), job(SETUP, train=LOOP), 2, ("model",), {})  # type: ignore[arg-type]
    earlier.note_loaded("first-2", {}, (), has_gradients=has_gradients)

    assert earlier.facts()[0].computes_gradients is not has_gradients


def test_results_that_could_not_be_stored_are_not_returned() -> None:
    view = SimpleNamespace(id="first-2", state=State.PROCESSING, results=())
    client = SimpleNamespace(job=lambda _: view)
    client.without_start = lambda: client
    earlier = EarlierJobs()
    earlier.note(Job(view, client), job(SETUP, train=LOOP), 2, ("model", "mean"), {})  # type: ignore[arg-type]
    view.state, view.results = State.COMPLETED, ("model",)

    made = after(*earlier.facts(), train="print(mean, best)", model="first-2")

    assert reported(made) == [("mean",), ("best",)]
    text = made.warnings[0].message
    assert "changed `mean`, which cannot be returned" in text
    assert "Create it in the training cell" in text


def test_class_among_the_outputs_is_named_as_not_returned() -> None:
    net = SimpleNamespace()
    space = {"Net": type("Net", (), {}), "net": net}
    view = SimpleNamespace(id="first-2", state=State.PROCESSING, results=())
    earlier = EarlierJobs()
    made = job(COUNTED.format(count="Net.calls"), train="net(torch.ones(1)).backward()")

    earlier.note(Job(view, SimpleNamespace()), made, 2, ("net", "Net"), space)  # type: ignore[arg-type]

    assert earlier.not_returned("first-2", space) == ("Net",)


HELD = """
import torch
from torch.nn.functional import mse_loss
xs = torch.ones(2, 2)
config = NetConfig(width=2)
width, size = 2, 3
class Learner:
    def __init__(self, *parts): self.parts = parts
    def fit(self, loss):
        loss(self.parts[0](self.parts[1])).backward()
        self.opt.step()
model = Net(config, size)
learn = Learner(model, xs, width, size)
"""


def test_data_that_a_trained_object_holds_does_not_change() -> None:
    library = NameFact(type_name="function", is_callable=True, is_immutable=True, module="torch.nn.functional")
    kinds = {"xs": "torch.Tensor", "config": "nets.NetConfig", "model": "Net", "learn": "Learner"}
    known = facts(mse_loss=library, **{name: NameFact(type_name=kind) for name, kind in kinds.items()})
    numbers = {name: NameFact(type_name="int", literal="2", is_immutable=True) for name in ("width", "size")}
    known = replace(known, names={**known.names, **numbers})

    made = job(HELD, train="learn.fit(mse_loss)\nprint(size, config)", facts=known)

    assert made.altered == ("learn", "model")
    assert {"xs", "config", "learn"} <= {*job(HELD, train="learn.fit(mse_loss)\nxs[0] = 2").altered}
    assert "xs" in job(HELD, train="learn.fit(mse_loss)\nxs[0] = 2", facts=known).altered


def test_changes_that_cannot_be_sent_are_named_beside_a_training() -> None:
    setup = "def rows():\n    yield 1\nclass args:\n    lr = 1\n"
    setup += "source = rows()\nmodel = make()\nopt = SGD(model.parameters())"
    train = "for n in range(3):\n    model(next(source)).backward()\n    opt.step()\n    args.lr *= 0.5"
    kinds = {"model": NameFact(type_name="Net"), "opt": NameFact(type_name="SGD")}
    kinds["source"] = NameFact(type_name="generator", cannot_travel="a generator")
    kinds["args"] = NameFact(type_name="type", is_callable=True, is_immutable=True, module="__main__")
    imports = "from somewhere import make\nfrom torch.optim import SGD"

    made = job(imports, setup, train, train=train, raised={3: 4}, facts=facts(**kinds))

    (text,) = [one.message for one in made.warnings if one.code == "earlier_training"]
    assert "--push model,opt to send" in text
    assert text.endswith("`args`, `source` changed as well and cannot be sent: the job uses them from before.")


def test_objects_that_cannot_be_returned_are_not_offered_for_o() -> None:
    setup = "import csv\nfile = open('log.csv', 'w')\nwriter = csv.writer(file)\nrows = []"
    train = "rows.append(1)\nwriter.writerow(rows)"
    kinds = {"writer": process_bound_kind(csv.writer(io.StringIO())), "rows": None}
    known = facts(**{name: NameFact(type_name="object", cannot_travel=kind) for name, kind in kinds.items()})
    first = EarlierJob(job="first-2", cell=2, altered=frozenset(job(setup, train=train).altered))

    made = job(setup, f"%%train\n{train}", train=train, facts=replace(known, jobs=(first,)))

    assert reported(made) == [("writer",), ("rows",)]
    texts = [one.message for one in made.warnings if one.code == "not_returned"]
    assert "`writer`, which cannot be returned" in texts[0]
    assert texts[1].endswith("-o rows.")


STOPPER = (
    "class Stopper:\n    def __call__(self, loss): self.best = loss\nclass Late(Stopper):\n    pass\nstop = Late()"
)
METHOD = "class Client:\n    def train(self, net):\n        opt = SGD(net.parameters())\n        opt.step()"
HOOK = """
kept = {}
def keep(name):
    def hook(module, given, output):
        kept[name] = output
    return hook
net = Net()
handle = net.fc.register_forward_hook(keep("fc"))
"""
PASSED = "def descend(w, rows):\n    for row in rows:\n        w -= row\n        print(row)\n"


@pytest.mark.parametrize(
    ("setup", "train", "altered"),
    [
        ("a, b = np.ones(2), np.ones(2)", "for w, d in zip([a, b], [1, 2]):\n    w -= d", {"a", "b"}),
        ("order = np.arange(9)", "np.random.shuffle(order)\nfor n in order:\n    print(n)", {"order"}),
        ("w = torch.ones(2)", "torch.nn.init.zeros_(w)\nfor one in w:\n    print(one)", {"w"}),
        (STOPPER, "if stop(3):\n    print(1)", {"stop"}),
        (f"{STOPPER}\ndef go():\n    return stop(3)", "x = go()", {"stop"}),
        (f"{STOPPER}\nstops = [stop]", "for one in stops:\n    x = one(3)", {"stops"}),
        (HOOK, "x = net(3)", {"kept"}),
        (f"{HOOK}def go(module):\n    return module(3)", "x = go(net)", {"kept"}),
        ("kept = []\nnet = Net()\nnet.register_forward_hook(lambda m, i, o: kept.append(o))", "x = net(3)", {"kept"}),
        (f"{PASSED}w, rows = np.ones(2), [1]", "descend(w, rows)", {"w"}),
        (
            f"{METHOD}\nnet, clients = Net(), [Client()]",
            "for one in range(1):\n    x = clients[one].train(net)",
            {"net"},
        ),
        (
            f"{METHOD}\n    def go(self, net):\n        self.train(net)\nnet, c = Net(), Client()",
            "c.go(net)",
            {"net", "c"},
        ),
    ],
)
def test_indirect_changes_of_a_job_are_known(setup: str, train: str, altered: set[str]) -> None:
    arrays = {name: NameFact(type_name="numpy.ndarray") for name in ("a", "b", "order", "w")}
    objects = {name: NameFact(type_name="object") for name in ("stop", "stops", "rows", "net", "clients", "c", "kept")}

    made = job(
        "import numpy as np, torch\nfrom torch.optim import SGD", setup, train=train, facts=facts(**arrays, **objects)
    )

    assert altered == {*made.altered} & {*arrays, *objects}


@pytest.mark.parametrize(
    ("kind", "train", "is_altered"),
    [
        ("tqdm.std.tqdm", "x.update(1)", False),
        ("matplotlib.figure.Figure", "x.add_subplot(1)", False),
        ("IPython.core.display_functions.DisplayHandle", "x.update(1)", False),
        ("pandas.DataFrame", "go(x)", False),
        ("pandas.DataFrame", "x['fold'] = 1", True),
        ("torch.utils.data.dataloader.DataLoader", "go(x)", False),
        ("numpy.ndarray", "go(x)", False),
        ("numpy.ndarray", "x += 1", True),
        ("argparse.Namespace", "go(x)", False),
        ("transformers.training_args.TrainingArguments", "go(x)", False),
        ("argparse.Namespace", "x.lr = 1", True),
        ("Queue", "go(x)", True),
    ],
)
def test_data_and_displays_change_only_by_assignment(kind: str, train: str, *, is_altered: bool) -> None:
    made = job("from somewhere import go, make\nx = make()", train=train, facts=facts(x=NameFact(type_name=kind)))

    assert ("x" in made.altered) is is_altered


@pytest.mark.parametrize(
    ("kind", "train", "is_altered"),
    [
        ("EarlyStopping", "trainer = L.Trainer(callbacks=[x])\ntrainer.fit(net, rows)", True),
        ("EarlyStopping", "for fold in range(2):\n    t = L.Trainer(callbacks=[x])\n    t.fit(net, rows)", True),
        ("EarlyStopping", "trainer = L.Trainer(callbacks=[x])\nprint(trainer, x.best_score)", False),
        ("ModelCheckpoint", "trainer = L.Trainer(callbacks=[x])\ntrainer.fit(net, rows)", True),
        ("MeanMetric", "for row in rows:\n    x.update(net(row))", True),
        ("MeanMetric", "print(x.compute())", False),
        ("CSVLogger", "trainer = L.Trainer(logger=x)\ntrainer.fit(net, rows)", False),
        ("Tokenizer", "trainer = L.Trainer(tokenizer=x)\ntrainer.fit(net, rows)", False),
    ],
)
def test_metrics_and_early_stopping_change_with_a_training(kind: str, train: str, *, is_altered: bool) -> None:
    setup = f"import lightning as L\nfrom somewhere import {kind}, net, rows\nx = {kind}()"

    made = job(setup, train=train, facts=facts(x=NameFact(type_name=f"library.{kind}")))

    assert ("x" in made.altered) is is_altered


@pytest.mark.parametrize(
    ("line", "is_altered"),
    [
        ("L.Trainer(max_epochs=2).fit(net, rows)", True),
        ("L.Trainer(max_epochs=2).validate(net, rows)", False),
        ("Trainer(model=net, train_dataset=rows).train()", True),
        ("result = transformers.Trainer(net, train_dataset=rows).train()", True),
        ("transformers.Trainer(net, train_dataset=rows).evaluate()", False),
        ("make_pipeline(StandardScaler(), net).fit(rows)", True),
        ("Pipeline([('scale', StandardScaler()), ('net', net)]).fit(rows)", True),
        ("copy.deepcopy(net).fit(rows)", False),
    ],
)
def test_model_given_to_a_trainer_of_one_line_changes(line: str, *, is_altered: bool) -> None:
    imports = """
    import copy, transformers
    import lightning as L
    from transformers import Trainer
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.preprocessing import StandardScaler
    from somewhere import Net, rows
    """

    assert ("net" in job(dedent(imports), "net = Net()", train=line).altered) is is_altered


@pytest.mark.parametrize(("line", "is_altered"), [("print(CFG.lr)", False), ("CFG.lr *= 0.5", True)])
def test_classes_of_settings_change_only_by_assignment(line: str, *, is_altered: bool) -> None:
    body = f"opt = SGD(net.parameters(), lr=CFG.lr)\n    opt.step()\n    {line}"
    setup = f"class CFG:\n    lr = 1\ndef train(net):\n    {body}"
    known = facts(CFG=NameFact(type_name="type", is_callable=True, is_immutable=True, module="__main__"))

    assert (
        "CFG" in job("from somewhere import SGD, net", setup, train="train(net)", facts=known).altered
    ) is is_altered


def test_tuples_of_functions_and_trained_tensors_are_known() -> None:
    space = {"tx": (len, job), "pair": (len, []), "add": ([].append,), "w": torch.ones(2, requires_grad=True), "x": 1}
    shell = SimpleNamespace(user_ns={**space, "y": torch.ones(2)}, user_ns_hidden={}, starting_dir="/")

    found = facts_of(shell, []).names  # type: ignore[arg-type]

    assert {name for name, fact in found.items() if fact.is_immutable} == {"tx", "x"}
    assert {name for name, fact in found.items() if fact.requires_grad} == {"w"}
    made = job("w, y = make()\nfrom somewhere import make", train="make(w, y)", facts=replace(KERNEL, names=found))
    assert made.altered == ("w",)
