"""Messages before a job starts, as the user reads them: what, where, what to type."""

from __future__ import annotations

import pytest

from jupyter_dlaas.analysis.model import Capture, ExecutedCell, KernelFacts, NameFact, OwnModule, TrainingCell
from jupyter_dlaas.capture.capture import capture
from jupyter_dlaas.capture.spelling import closest_name
from jupyter_dlaas.suggest.advice_text import trains_alone


def made(
    *sources: str,
    train: str,
    learners: int = 1,
    push: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (),
    seconds: dict[int, float] | None = None,
    facts: KernelFacts | None = None,
) -> Capture:
    cells = [
        ExecutedCell(count=n, source=source, duration_s=(seconds or {}).get(n, 0.0))
        for n, source in enumerate(sources, 1)
    ]
    cell = TrainingCell(count=len(cells) + 1, source=train, learners_max=learners, push=push, outputs=outputs)
    return capture(cells, cell, facts)


def said(one: Capture) -> list[str]:
    return [problem.message for problem in (*one.errors, *one.warnings)]


# ------------------------------------------------------------------------------------- files that every learner writes

OVER_EACH_OTHER = "so they overwrite each other's file. Put it under `if run.is_main:`."


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("torch.save(model, 'm.pt')", "torch.save(…)"),
        ("frame.to_csv('x.csv')", "frame.to_csv(…)"),
        ("plt.savefig('x.png')", "plt.savefig(…)"),
        ("writer = SummaryWriter()", "SummaryWriter(…)"),
        ("writer = tensorboard.SummaryWriter('runs')", "tensorboard.SummaryWriter(…)"),
        ("open('log.txt', 'w').write('x')", "open(…, 'w')"),
        ("open('log.txt', mode='a')", "open(…, 'a')"),
        ("model.save_pretrained('out')", "model.save_pretrained(…)"),
        ("model.save('m.keras')", "model.save(…)"),
        ("np.savetxt('x', model)", "np.savetxt(…)"),
        ("joblib.dump(model, 'm')", "joblib.dump(…)"),
    ],
)
def test_file_written_by_every_learner_is_reported(line: str, what: str) -> None:
    imports = "import torch, tensorboard, joblib\nimport numpy as np\nimport matplotlib.pyplot as plt\n"
    imports += "from torch.utils.tensorboard import SummaryWriter\nmodel = frame = torch.nn.Linear(1, 1)"

    assert said(made(imports, train=f"x = 1\n{line}", learners=4)) == [
        f"cell [2], line 3: each of up to 4 learners runs {what}, {OVER_EACH_OTHER}"
    ]
    assert said(made(imports, train=f"x = 1\n{line}", learners=1)) == []


@pytest.mark.parametrize(
    "guard",
    [
        "if run.is_main:\n    {}",
        "if rank == 0:\n    {}",
        "if not rank:\n    {}",
        "if int(os.environ['RANK']) == 0:\n    {}",
        "if rank != 0:\n    pass\nelse:\n    {}",
        "if accelerator.is_main_process:\n    for _ in range(2):\n        {}",
        "if dist.get_rank() == 0:\n    {}",
    ],
)
def test_a_file_that_one_learner_writes_is_nothing_to_tell(guard: str) -> None:
    before = "import os, torch\nimport torch.distributed as dist\nrank = 0\nrun = accelerator = model = object()"

    assert said(made(before, train=guard.format("torch.save(model, 'm.pt')"), learners=2)) == []


def test_file_written_by_a_function_is_reported_with_its_line() -> None:
    function = "def keep(model):\n    torch.save(model, 'm.pt')"

    assert said(made("import torch\nmodel = 1", function, train="keep(model)", learners=2)) == [
        f"cell [2], line 2: each of up to 2 learners runs torch.save(…), {OVER_EACH_OTHER}"
    ]


# ------------------------------------------------------------------------------------------------------ names and input


def test_undefined_name_in_a_function_is_reported_with_its_line() -> None:
    assert said(made("def f():\n    return nowhere + 1", train="f()")) == [
        "cell [1], line 2, may read `nowhere`, which is not defined anywhere. If that line runs in the job, it fails."
    ]


def test_unbound_result_is_reported() -> None:
    assert said(made("hist = 1", train="x = hist", outputs=("history",))) == [
        "-o history: `history` is not defined in the training cell or before it. Did you mean -o hist?"
    ]


def test_input_in_a_function_is_reported_with_its_line() -> None:
    assert said(made("def ask():\n    return input('n? ')", train="n = ask()")) == [
        "cell [1], line 2: input() does not work in a job. Call it in an earlier cell and use the variable here."
    ]


# --------------------------------------------------------------------------------------------------------- slow to redo


def test_slow_cells_are_reported_with_a_push_of_their_result() -> None:
    one = made(
        "import numpy as np\ndef load():\n    return np.zeros((3, 2))",
        "raw = load()\nlimit = 3\ndata = raw[:limit]\nclean = data.copy",
        "labels = clean()[:, 0]",
        train="print(data, labels, limit)",
        seconds={1: 99.0, 2: 95.4, 3: 0.2},
        facts=KernelFacts(
            names={
                "clean": NameFact(type_name="builtin_function_or_method", is_callable=True),
                "limit": NameFact(type_name="int", literal="3", is_immutable=True),
            }
        ),
    )

    assert [problem.message for problem in one.warnings if problem.code == "slow_prelude"] == [
        "the cells that the job runs again took 96 s here, mostly cell [2] (95 s). To send their result: --push data."
    ]


def test_offered_push_includes_requested_names() -> None:
    one = made(
        "model = list(range(3))",
        "data = list(range(5))",
        train="print(model, data)",
        push=("model",),
        seconds={2: 40.0},
        facts=KernelFacts(
            names={
                "model": NameFact(type_name="Net"),
                "data": NameFact(type_name="numpy.ndarray"),
            }
        ),
    )

    offers = [problem.message for problem in one.warnings if problem.code == "slow_prelude"]
    assert [offer.rpartition(". ")[2] for offer in offers] == ["To send their result: --push model,data."]


def test_import_time_does_not_make_a_cell_slow() -> None:
    cells = ("import torch\nx = list(range(3))", "import os, torch\ny = list(range(4))")
    seconds = {1: 40.0, 2: 50.0}
    one = made(*cells, train="print(x, y, torch, os)", seconds=seconds)

    assert [problem.names for problem in one.warnings if problem.code == "slow_prelude"] == [("y",)]


def test_thirty_seconds_are_not_slow() -> None:
    one = made("data = list(range(3))", train="print(data)", seconds={1: 30.0})

    assert one.warnings == ()


# --------------------------------------------------------------------------------------------------------------- pushes


def test_pushed_optimiser_with_a_new_model_is_refused() -> None:
    facts = KernelFacts(
        names={"net": NameFact(type_name="Net"), "opt": NameFact(type_name="torch.optim.SGD", shares=("net", "other"))}
    )
    cells = ("import torch", "net = torch.nn.Linear(1, 1)", "opt = torch.optim.SGD(net.parameters())")

    assert said(made(*cells, train="net(1)\nopt.step()", push=("opt",), facts=facts)) == [
        (
            "cell [2], line 1: the job would create a new `net`, but the pushed `opt` refers to the current "
            "one. Push both: --push opt,net."
        )
    ]
    assert said(made(*cells, train="net(1)\nopt.step()", push=("opt", "net"), facts=facts)) == []
    assert said(made(*cells, train="opt.step()", push=("opt",), facts=facts)) == []


# ----------------------------------------------------------------------------------------------------- several learners


@pytest.mark.parametrize(
    ("text", "is_alone"),
    [
        ("x = 1", True),
        ("import jupyter_dlaas as dlaas\nmodel = dlaas.pushed('model')\ndlaas.random_as_before(3)", True),
        ("import jupyter_dlaas as dlaas\nrun = dlaas.run()", False),
        ("from jupyter_dlaas import run", False),
        ("import torch.distributed as dist\ndist.init_process_group()", False),
        ("import os\nrank = os.environ['RANK']", False),
        ("from transformers import Trainer\nTrainer().train()", False),
        ("import lightning.pytorch as pl\npl.Trainer(max_epochs=3).fit(net)", True),
        ("import lightning.pytorch as pl\npl.Trainer(strategy='ddp').fit(net)", False),
        ("import pytorch_lightning as pl\nfrom a import FSDPStrategy\npl.Trainer(strategy=FSDPStrategy())", False),
        ("from lightning import Fabric\nFabric().launch()", False),
    ],
)
def test_a_program_that_knows_nothing_of_other_learners_trains_alone(text: str, is_alone: bool) -> None:
    assert trains_alone(text) is is_alone


# -------------------------------------------------------------------------------------------------------------- modules


def test_module_edited_after_import_is_reported() -> None:
    facts = KernelFacts(own_modules=(OwnModule("tools.data", "tools/data.py", is_edited=True),))

    assert said(made("from tools import data", train="data.load()", facts=facts)) == [
        (
            "tools/data.py was edited after the kernel imported it; the job uses the current file. "
            "To use it here, too: import importlib, tools.data; importlib.reload(tools.data)."
        )
    ]


# -------------------------------------------------------------------------------- results that Keras cannot make again

GAN = (
    "class GAN(keras.Model):\n    def __init__(self, discriminator, generator):\n        super().__init__()\n"
    "    def train_step(self, data):\n        return {}"
)
VAE = (
    "class VAE(Model):\n    def __init__(self, encoder, decoder, **kwargs):\n        super().__init__(**kwargs)\n"
    "        self.encoder = encoder"
)
KERAS = "import keras\nimport numpy as np\nimport tensorflow as tf\nfrom keras import Model"
PARTS = "encoder = keras.Sequential([])\ndecoder = keras.Sequential([])\nwidth = 3\nspread = np.var([1])"


@pytest.mark.parametrize(
    ("cells", "call", "also"),
    [
        ((GAN,), "GAN(discriminator=encoder, generator=decoder)", ", or its models: -o encoder,decoder"),
        ((VAE,), "VAE(encoder, decoder)", ", or its models: -o encoder,decoder"),
        ((GAN,), "GAN(encoder, spread)", ", or its models: -o encoder"),
        ((GAN.replace("keras.", "tf.keras."),), "GAN(width, 2)", ""),
        ((GAN, "class Wide(GAN):\n    pass"), "Wide(1, width)", ""),
    ],
)
def test_unloadable_keras_model_is_reported_before_the_start(cells: tuple[str, ...], call: str, also: str) -> None:
    one = made(KERAS, PARTS, *cells, f"m = {call}", train="m.fit(1)", outputs=("m",))

    said = (
        f"-o m: Keras cannot recreate a `{call.partition('(')[0]}`, which has no get_config. Add "
        f"`m_weights = m.get_weights()` at the end of the cell and use -o m_weights{also}."
    )
    assert [problem.message for problem in one.warnings if problem.code == "keras_config"] == [said]


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (f"{VAE}\n    def get_config(self):\n        return {{}}", "m = VAE(encoder, decoder)"),
        (VAE, "m = VAE(width, 2)"),
        ("class Own(Model):\n    def train_step(self, data):\n        return {}", "m = Own(encoder, decoder)"),
        ("class Own:\n    def __init__(self, a):\n        self.a = a", "m = Own(encoder)"),
        ("import torch\nclass Net(torch.nn.Module):\n    def __init__(self, a):\n        pass", "m = Net(encoder)"),
        (VAE, "m = keras.Sequential([])"),
    ],
)
def test_a_model_that_can_come_back_is_nothing_to_tell(kind: str, make: str) -> None:
    one = made(KERAS, PARTS, kind, make, train="m.fit(1)", outputs=("m",))

    assert "keras_config" not in [problem.code for problem in one.warnings]


@pytest.mark.parametrize(
    ("name", "names", "closest"),
    [
        ("optimizer", {"time", "torch", "model"}, None),
        ("optimiser", {"optimizer", "time"}, "optimizer"),
        ("history", {"hist", "model"}, "hist"),
        ("modle", {"model", "module_name"}, "model"),
    ],
)
def test_closest_name_is_suggested_only_when_it_is_spelled_alike(
    name: str, names: set[str], closest: str | None
) -> None:
    assert closest_name(name, names) == closest
