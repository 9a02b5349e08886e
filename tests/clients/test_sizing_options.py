"""`--elastic` and `--schedule` as people type them."""

from __future__ import annotations

import pytest

from jupyter_dlaas.api import option_parsing
from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.protocol import Condition, Elastic, Scheduled


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("off", option_parsing.Sizing(elastic=Elastic.OFF)),
        ("auto", option_parsing.Sizing(elastic=Elastic.AUTO)),
        ("auto:efficiency=0.2", option_parsing.Sizing(elastic=Elastic.AUTO, condition_value=0.2)),
        (
            "auto:utility=12,price=2",
            option_parsing.Sizing(
                elastic=Elastic.AUTO, condition=Condition.UTILITY, condition_value=12.0, price_per_h=2.0
            ),
        ),
        (
            "auto:deadline=2h",
            option_parsing.Sizing(elastic=Elastic.AUTO, condition=Condition.DEADLINE, condition_value=7200.0),
        ),
        ("auto:goodput", option_parsing.Sizing(elastic=Elastic.AUTO, condition=Condition.GOODPUT)),
    ],
)
def test_size_mode_is_parsed(text: str, read: option_parsing.Sizing) -> None:
    assert option_parsing.elastic(text) == read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("always", "is not valid; use off, manual, auto"),
        ("manual:efficiency", "is not valid; use off"),
        ("auto:speed=2", "unknown condition 'speed'"),
        ("auto:utility", "needs a value"),
        ("auto:efficiency=much", "not a number"),
        ("auto:efficiency=0.1,price=2", "after efficiency"),
    ],
)
def test_contradictory_options_are_refused(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        option_parsing.elastic(text)


def test_schedule_is_sorted_and_counts_devices_or_learners() -> None:
    found = option_parsing.schedule(["epoch 30: 4 gpus", "Epoch 10: 1 learner, epoch 40: 2"], 2)

    assert found == (
        Scheduled(epoch=10, learners=1), Scheduled(epoch=30, learners=2), Scheduled(epoch=40, learners=1),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["30: 4", "epoch 30 4 gpus", "epoch 3: 0 gpus", "epoch 3: 3 gpus"])
def test_invalid_schedule_explains_the_format(text: str) -> None:
    with pytest.raises(Invalid, match="schedule"):
        option_parsing.schedule(text, 2)
