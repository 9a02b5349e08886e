"""The table of the benchmark: what it says of a figure, of a ratio, of a row that was not measured."""

from __future__ import annotations

from tests.bench.table import Line, figure, not_measured, ratio, render


def test_a_figure_tells_its_median_its_range_and_how_often() -> None:
    assert str(figure([12.34, 11.0, 140.2], "ms")) == "12.3 ms [11.0–140, 3]"
    assert str(figure([1234.5], "/s")) == "1,234 /s"


def test_a_ratio_below_a_tenth_is_told_as_a_part() -> None:
    assert ratio(figure([25.0], "ms"), figure([10.0], "ms")) == "2.50 ×"
    assert ratio(figure([25.0], "ms"), figure([1000.0], "ms")) == "1/40"


def test_a_table_shows_every_line_and_says_why_one_is_missing() -> None:
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
