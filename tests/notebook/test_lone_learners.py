"""Programs of which several learners would do the same start with one."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_dlaas.api import option_parsing
from jupyter_dlaas.suggest.single_learner import options, trains_alone


@pytest.mark.parametrize(
    "text",
    [
        "for x, y in loader:\n    loss = net(x)\n    loss.backward()\n    opt.step()",
        "import keras\nmodel.fit(x, y)",
        "from sklearn.linear_model import LogisticRegression\nLogisticRegression().fit(x, y)",
        "import xgboost\nbooster = xgboost.train({}, data)",
        "import jax\nfor _ in range(9):\n    w = update(w)",
        "import tensorflow as tf\nwith tf.GradientTape() as tape:\n    pass",
    ],
)
def test_a_program_that_nothing_brings_together_trains_alone(text: str) -> None:
    assert trains_alone([text, "def helper():\n    return 1"])


@pytest.mark.parametrize(
    "text",
    [
        "import jupyter_dlaas as dlaas\nrun = dlaas.run()",
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()",
        "from trl import SFTTrainer\nSFTTrainer(model).train()",
        "import horovod.torch as hvd",
        "with learn.distrib_ctx():\n    learn.fit(1)",
        "import jax\njax.distributed.initialize()",
        "rank = os.environ['RANK']",
        "launch(main, args=())",
    ],
)
def test_possibly_distributed_program_gets_the_requested_size(text: str) -> None:
    assert not trains_alone([text])
    assert not trains_alone(["import helper", text]), "also in a module of its own"


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"gpus": "2"}, (1, 2, 1)),
        ({"gpus": "2:8"}, (1, 8, 1)),
        ({"gpus": "4", "gpus_per_learner": "2"}, (1, 2, 2)),
    ],
)
def test_single_learner_program_starts_with_one_learner(given: dict[str, Any], sizes: tuple[int, ...]) -> None:
    most = option_parsing.sizes(**given).learners_max

    found = options(given | {"elastic": "auto:goodput"}, most)

    assert (found.pop("start_with"), found.pop("elastic")) == (1, "manual")
    made = option_parsing.sizes(**found)
    assert (made.learners_min, made.learners_max, made.gpus_per_learner) == sizes


def test_a_schedule_of_sizes_stays_as_it_is() -> None:
    given = {"gpus": "1:2", "schedule": ["epoch 3: 2 gpus"]}
    assert options(given, 2) == given
