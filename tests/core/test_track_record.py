"""The track record of start estimates."""

from __future__ import annotations

from dlaas_server.core.forecast.track_record import Forecast, track_record
from dlaas_server.core.model.job import StartEstimate


def forecast(low_s: float, high_s: float, waited_s: float) -> Forecast:
    return Forecast(job="a", estimate=StartEstimate(at_s=0.0, low_s=low_s, high_s=high_s), started_s=waited_s)


def test_estimate_wrong_by_a_factor_above_three_misses() -> None:
    """Also where that is less than a minute: 5 s were shown, and it took 30."""
    far = forecast(0.0, 5.0, 30.0)

    assert (far.held, far.is_close, far.is_far) == (False, False, True)
    assert not forecast(0.0, 1.0, 6.0).is_far, "both are shown as about 5 s"
    assert forecast(600.0, 900.0, 100.0).is_far
    assert forecast(20.0, 30.0, 60.0).is_close
    assert track_record([far, forecast(20.0, 30.0, 25.0)]) == (
        "Of the last 2 start estimates, 1 was correct, 1 wrong by more than a factor of three."
    )
