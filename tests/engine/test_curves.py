"""Curves as readers get them: thinned, with NaN and infinite values by name."""

from __future__ import annotations

import math

from dlaas_server.engine.job_stream import curves, thinned
from jupyter_dlaas.wire.codec import Json


def test_curve_keeps_nan_and_infinity_and_drops_rewound_steps() -> None:
    values = [1.0, "NaN", None, "-Infinity", "Infinity"]
    records: list[dict[str, Json]] = [
        {"t": 1.0, "step": step, "values": {"loss": value}} for step, value in enumerate(values)
    ]
    records.append({"t": 2.0, "rewind": 3})
    found = curves(records)["loss"]

    assert [str(value) for _, _, value in found] == ["1.0", "nan", "nan", "-inf"]
    assert [value for _, _, value in thinned(found, 10)] == [1.0, "NaN", "NaN", "-Infinity"]


def test_thinned_curve_keeps_spikes_and_the_first_nan_per_bucket() -> None:
    points = [(step, 0.0, 1.0) for step in range(1000)]
    points[500:504] = [(500, 0.0, math.nan), (501, 0.0, math.nan), (502, 0.0, 9.0), (503, 0.0, math.inf)]
    found = thinned(points, 30)

    assert len(found) <= 30
    assert [500, 0.0, "NaN"] in found
    assert [502, 0.0, 9.0] in found
    steps = [point[0] for point in found if isinstance(point[0], int)]
    assert steps == sorted(steps)
