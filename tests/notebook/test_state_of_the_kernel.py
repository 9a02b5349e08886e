"""State that no name holds: what capture keeps of it, and what it reports."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

from jupyter_dlaas.analysis.model import NameFact
from jupyter_dlaas.kernel import recorder
from jupyter_dlaas.transfer import torch_layers
from tests.notebook.cases import codes, facts, job, prelude

DEFAULTS = (
    "import torch",
    "import sklearn",
    "import tensorflow as tf",
    "import jax",
    "import keras",
    "import pandas as pd",
)


@pytest.mark.parametrize(
    "line",
    [
        "torch.set_default_dtype(torch.float64)",
        "old = torch.set_grad_enabled(False)",
        "torch.no_grad().__enter__()",
        "torch.nn.functional.relu = lambda x: x",
        "setattr(torch.nn.Linear, 'scale', 2)",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "sklearn.set_config(transform_output='pandas')",
        "old = sklearn.set_config(enable_metadata_routing=True)",
        "tf.keras.mixed_precision.set_global_policy('mixed_float16')",
        "jax.config.update('jax_enable_x64', True)",
        "keras.backend.set_floatx('float64')",
    ],
)
def test_settings_of_libraries_reach_the_job(line: str) -> None:
    assert line in prelude(job(*DEFAULTS, line, train="x = torch.ones(3)"))


@pytest.mark.parametrize(
    "cells",
    [
        ("import numpy as np", "old = np.seterr(all='raise')"),
        ("from numpy import seterr", "seterr(all='raise')"),
        ("import locale as lc", "lc.setlocale(lc.LC_ALL, 'C')"),
        ("import logging.config", "logging.config.dictConfig(SETTINGS)"),
        ("from decimal import getcontext\ncontext = getcontext()", "context.prec = 5"),
        ("import torch\nguard = torch.no_grad()", "guard.__enter__()"),
        ("from unittest import mock", "mock.patch('os.cpu_count', lambda: 1).start()"),
        ("from unittest.mock import patch\np = patch.dict('os.environ', A='1')", "p.start()"),
    ],
)
def test_settings_of_the_process_reach_the_job(cells: tuple[str, str]) -> None:
    kept = prelude(job("SETTINGS = {'version': 1}", *cells, train="x = 1"))

    assert kept[-1] == cells[1]
    assert cells[0].split("\n")[0] in kept


@pytest.mark.parametrize(
    "line",
    [
        "print(locale.setlocale(locale.LC_ALL))",
        "size = csv.field_size_limit()",
        "mode = np.geterr()",
        "with np.errstate(all='raise'):\n    y = 1",
        "log = logging.getLogger('a')",
        "plt.rcParams.update({'font.size': 5})",
    ],
)
def test_reading_a_setting_is_not_needed(line: str) -> None:
    above = "import csv, locale, logging\nimport numpy as np\nimport matplotlib.pyplot as plt"

    assert line.split("\n")[0] not in prelude(job(above, line, train="x = 1"))


def test_function_that_configures_a_module_is_called_in_the_job() -> None:
    define = "def double():\n    import torch\n    torch.nn.Linear.scale = 2"

    assert prelude(job(define, "double()", train="x = 1"))[-1] == "double()"


def test_value_set_through_ipython_comes_from_the_kernel() -> None:
    for line in (
        "get_ipython().user_ns['lr'] = rate()",
        "get_ipython().push({'lr': rate()})",
        "ip = get_ipython()\nip.ex('lr = rate()')",
    ):
        made = job("lr = 0.1\ndef rate():\n    return 0.5", line, train="print(lr)", facts=facts(lr=0.5))

        assert [one.name for one in made.literals] == ["lr"]
        assert "lr = 0.5" in made.text


def test_object_set_through_ipython_is_refused_with_a_push() -> None:
    kernel = facts(net=NameFact(type_name="torch.nn.Linear"))
    made = job(
        "import torch", "get_ipython().push({'net': torch.nn.Linear(1, 1)})", train="net.zero_grad()", facts=kernel
    )

    assert codes(made) == ["not_reproducible"]
    assert "--push net" in made.errors[0].message


def test_omitted_text_of_unknown_effect_is_reported() -> None:
    made = job("items = [1]", "exec(open('more.py').read())", train="print(items)")

    assert codes(made) == ["text_omitted"]
    assert "--with-cell 2" in made.warnings[0].message


@pytest.mark.parametrize(
    "read",
    [
        "rows = df.query('x > @cut')",
        "rows = df.eval('x + @cut')",
        "rows = eval('cut + 1')",
        "import duckdb\nrows = duckdb.sql('select * from cut')",
        "import numexpr as ne\nrows = ne.evaluate('cut * 2')",
        "def select(df):\n    return df.query('x > @cut')\nrows = select(df)",
        "text = 'cut + 1'\nrows = eval(text)",
    ],
)
def test_names_inside_query_texts_are_captured(read: str) -> None:
    made = job("import pandas as pd\ndf = pd.DataFrame({'x': [1]})", "cut = 2", read, train="print(rows)")

    assert "cut = 2" in prelude(made)
    assert "cut = 2" in prelude(job("import pandas as pd\ndf = pd.DataFrame({'x': [1]})", "cut = 2", train=read))


def test_rows_of_a_database_file_are_not_written_again() -> None:
    insert = "n = db.execute('insert into runs values (1)').rowcount"
    in_memory = job("import sqlite3\ndb = sqlite3.connect(':memory:')", insert, train="print(db)")
    in_file = job("import sqlite3\ndb = sqlite3.connect('runs.db')", insert, train="print(db)")

    assert insert in prelude(in_memory)
    assert insert not in prelude(in_file)


NET = "import torch\nfrom torch import nn\nmodel = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))\nx = torch.ones(2)"
NORMALISED = facts(model=NameFact(type_name="torch.nn.Sequential", has_running_statistics=True))


@pytest.mark.parametrize(
    "look",
    [
        "print(model(x).shape)",
        "out = model(x)",
        "with torch.no_grad():\n    out = model(x)",
        "model.train()\nout = model(x)",
    ],
)
def test_omitted_look_that_updated_statistics_is_reported(look: str) -> None:
    made = job(NET, look, train="model.zero_grad()", facts=NORMALISED)

    assert codes(made) == ["look_omitted"]
    assert "updated the running statistics (BatchNorm) of `model`" in made.warnings[0].message
    assert "--with-cell 2" in made.warnings[0].message


@pytest.mark.parametrize(
    "cells",
    [
        ("model.eval()\nout = model(x)",),
        ("out = model(x)", NET),  # another model since
        ("print(model)",),
    ],
)
def test_look_that_leaves_the_model_is_not_reported(cells: tuple[str, ...]) -> None:
    made = job(NET, *cells, train="model.zero_grad()", facts=NORMALISED)

    assert "look_omitted" not in codes(made)


def test_omitted_look_that_drew_in_cudnn_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_layers, "CUDNN_DEVICES", {"cpu"})
    kinds = {"LSTM": nn.LSTM(2, 2, num_layers=2, dropout=0.5), "one layer": nn.GRU(2, 2), "dropout": nn.Dropout(0.5)}
    space = {name: nn.Sequential(layer) for name, layer in kinds.items()}
    shell = SimpleNamespace(user_ns=space, user_ns_hidden={}, starting_dir="")
    found = recorder.facts_of(shell, []).names  # type: ignore[arg-type]
    model = found["LSTM"]
    made = job(NET, "print(model(x).shape)", train="model.zero_grad()", facts=facts(model=model))

    assert [name for name, fact in found.items() if fact.has_cudnn_dropout] == ["LSTM"]
    assert codes(made) == ["look_omitted"]
    assert "drew dropout for `model` from a state of cuDNN that cannot be read" in made.warnings[0].message
    assert "call model.eval() first" in made.warnings[0].message


def test_omitted_look_that_created_lazy_weights_is_reported() -> None:
    define = "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        self.fc = nn.LazyLinear(2)"
    made = job(define, "net = Net()\nx = 1", "print(net(x).shape)", "print(net(x).sum())", train="net.zero_grad()")

    assert codes(made) == ["look_omitted"]
    assert made.warnings[0].message.startswith("cell [3], line 1")
    assert "created the weights of the lazy layers of `net`" in made.warnings[0].message


def test_forward_pass_that_counts_is_repeated() -> None:
    define = (
        "from torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n        self.{} = x\n        return x"
    )
    counting, storing = (define.replace("self.{} =", change) for change in ("self.n +=", "self.last ="))

    assert "y = net(3)" in prelude(job(counting, "net = Net()", "y = net(3)", train="net.zero_grad()"))
    assert "y = net(3)" not in prelude(job(storing, "net = Net()", "y = net(3)", train="net.zero_grad()"))


PIPELINE = (
    "import tensorflow as tf\nraw = tf.data.Dataset.range(9)\nshuffled = raw.shuffle(9)\ndata = shuffled.batch(3)"
)


@pytest.mark.parametrize(
    "look",
    [
        "for x in data.take(1):\n    print(x.shape)",
        "x = next(iter(data))\nprint(x)",
        "print(len(list(enumerate(shuffled))))",
        "print([x.shape for x in shuffled.take(2)])",
    ],
)
def test_passes_of_a_shuffling_pipeline_are_repeated(look: str) -> None:
    made = job(PIPELINE, look, "print(data)\nprint([x for x in raw])", train="for x in data:\n    total = x")

    assert [line for line in prelude(made) if line not in PIPELINE] == look.splitlines()[
        : 2 if "take(1)" in look else 1
    ]
    assert made.altered == ("data",)


def test_pipelines_with_one_order_are_not_passed_again() -> None:
    fixed = PIPELINE.replace("shuffle(9)", "shuffle(9, reshuffle_each_iteration=False)")
    for setup in (fixed, PIPELINE.replace(".shuffle(9)", ".cache()"), PIPELINE.replace("tensorflow", "other")):
        made = job(setup, "print([x for x in data])", train="for x in data:\n    total = x")

        assert "\n".join(prelude(made)) == setup
        assert made.altered == ()
