"""The table of the benchmark: what it says of a figure, of a ratio, of a row that was not measured."""

from __future__ import annotations

from tests.bench.table import Line, figure, not_measured, ratio, render


def test_figure_shows_median_range_and_count() -> None:
    assert str(figure([12.34, 11.0, 140.2], "ms")) == "12.3 ms [11.0–140, 3]"
    assert str(figure([1234.5], "/s")) == "1,234 /s"


def test_ratio_below_a_tenth_is_shown_as_a_fraction() -> None:
    assert ratio(figure([25.0], "ms"), figure([10.0], "ms")) == "2.50 ×"
    assert ratio(figure([25.0], "ms"), figure([1000.0], "ms")) == "1/40"


def test_table_shows_every_row_or_the_reason_it_lacks() -> None:
    ours, theirs = figure([20.0, 22.0, 24.0], "ms"), figure([10.0, 11.0, 12.0], "ms")
    lines = [
        Line(
            what="start", bar="≤ 25 ms", measured=ours, beside="python", beside_figure=theirs, times=ratio(ours, theirs)
        ),
        not_measured("card", "≤ 500 ms", "the front end\nis not built"),
    ]

    assert render(lines).splitlines() == [
        "what   measured                bar       beside it                      ratio",
        "-----  ----------------------  --------  -----------------------------  ------",
        "start  22.0 ms [20.0–24.0, 3]  ≤ 25 ms   python 11.0 ms [10.0–12.0, 3]  2.00 ×",
        "card   –                       ≤ 500 ms",
        "    not measured: the front end is not built",
    ]
