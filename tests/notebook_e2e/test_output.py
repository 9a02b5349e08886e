"""A job without our page: plain HTML of at most 8 kB and one line of text; nothing that a job says gets through."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.display import html
from jupyter_dlaas.wire.codec import Json, decode
from jupyter_dlaas.wire.protocol import Bundle, Cause, Failure, Note, State, Where

WIRE = Path(__file__).parents[1] / "wire"
ALLOWED = {"div", "p", "b", "table", "tbody", "tr", "th", "td", "br", "details", "summary", "pre"}
ATTACK = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[31mred\x1b[0m\x00"


def bundle(**changes: object) -> Bundle:
    made = decode(Bundle, json.loads((WIRE / "bundle.json").read_text()), unknown="ignore")
    return replace(made, **changes)  # type: ignore[arg-type]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    return tags


def hostile(text: str) -> Bundle:
    """Return a bundle in which everything that a user or a job can choose is this text."""
    job = bundle().job
    return bundle(
        pool=text,
        log=(text,) * 20,
        curves={text + str(n): [[1, 2.0, 3.0]] for n in range(10)},
        job=replace(
            job,
            id=text,
            name=text,
            owner=text,
            state=State.FAILED,
            state_label=text,
            status_line=text,
            reason=text,
            unit=text,
            results=(text,),
            outputs=(text,),
            notes=(Note(code="x", text=text),) * 10,
            failure=Failure(
                cause=Cause.YOUR_CODE,
                code="x",
                what=text,
                advice=text,
                where=Where(label=text, line=3, function=text, source=(text,)),
            ),
        ),
    )


def test_a_stored_attack_is_shown_as_text() -> None:
    tags = parsed(html.html_of(hostile(ATTACK)))

    assert tags.tags <= ALLOWED
    assert tags.attributes == []
    assert "<script>alert(1)</script>" in tags.text
    assert "\x1b" not in tags.text
    assert "\x00" not in tags.text


@given(st.text(max_size=3000))
def test_any_job_output_stays_small_and_plain(text: str) -> None:
    made = html.html_of(hostile(text))

    assert len(made.encode(errors="surrogatepass")) <= html.BYTES_MAX
    assert parsed(made).tags <= ALLOWED
    assert "\n" not in html.plain_of(hostile(text))


def test_output_of_a_large_job_stays_within_8_kb() -> None:
    made = html.html_of(hostile("&" * 100_000))

    assert len(made) <= 8000
    assert parsed(made).tags <= ALLOWED


def test_curve_is_drawn_in_blocks_with_its_ends() -> None:
    made = html.html_of(bundle(curves={"loss": [[n, float(n), 2.31 - n * 0.02] for n in range(100)]}))

    row = re.search(r"<tr><th>loss</th><td>(\S+) 2\.31 → 0\.330</td></tr>", made)
    assert row is not None, made
    assert (row[1][0], row[1][-1], len(row[1])) == ("█", "▁", 30)


def test_a_curve_with_nothing_in_it_is_left_out() -> None:
    made = html.html_of(bundle(curves={"loss": [], "odd": "text"}))

    assert not any(f"<th>{name}</th>" in made for name in ("loss", "odd"))


def test_nan_and_infinite_values_are_shown_as_such() -> None:
    points = [[n, float(n), value] for n, value in enumerate([1.0, 2.0, "NaN", "Infinity"])]
    curves: dict[str, Json] = {"loss": points, "bad": [[1, 1.0, None]]}
    notes = (Note(code="report_not_finite", text="loss became NaN at step 2."),)
    job = replace(bundle().job, notes=(*notes, Note(code="warning", text="w")))
    made = html.html_of(bundle(curves=curves, job=job))

    assert "<tr><th>loss</th><td>▁█×× 1.00 → ∞</td></tr>" in made
    assert "<tr><th>bad</th><td>× NaN → NaN</td></tr>" in made
    assert "loss became NaN at step 2." in made
    assert "  loss ∞  bad NaN  " in html.plain_of(bundle(curves=curves, job=job))


def test_line_of_a_running_job_shows_progress() -> None:
    assert html.plain_of(bundle(curves={"loss": [[1, 1.0, 0.412]]})) == (
        "resnet-48  PROCESSING  epoch 8/30, 24%  loss 0.412  4 GPUs (1-8)"
    )


def test_line_of_a_failed_job_shows_the_place() -> None:
    job = replace(
        bundle().job,
        state=State.FAILED,
        failure=Failure(
            cause=Cause.YOUR_CODE,
            code="x",
            what="ValueError: no\nnews",
            advice="",
            where=Where(label="cell [5]", line=14),
        ),
    )

    assert html.plain_of(bundle(job=job)) == "resnet-48  FAILED  your code, cell [5], line 14: ValueError: no news"


def test_long_curves_are_thinned_to_200_points() -> None:
    points = [[n, float(n), 1.0] for n in range(5000)]

    kept = html.thinned(points)

    assert len(kept) == 200
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_a_log_line_is_kept_as_a_terminal_shows_it() -> None:
    assert html.cleaned(" 10%|#\r100%|##########\r") == "100%|##########"
    assert html.cleaned("\x1b[31mred\x1b[0m\x07") == "red"
