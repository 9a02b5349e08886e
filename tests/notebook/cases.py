"""Builders for capture tests: cells as text in, a `Capture` out."""

from __future__ import annotations

from collections.abc import Mapping

from jupyter_dlaas.analysis.model import Capture, ExecutedCell, KernelFacts, NameFact, TrainingCell
from jupyter_dlaas.capture.capture import capture
from jupyter_dlaas.capture.render import ENTRY


def cells(*sources: str, raised: Mapping[int, int | None] | None = None) -> list[ExecutedCell]:
    """Cells executed one after the other, counted from 1. `raised`: those that raised, with the line."""
    known = raised or {}
    return [
        ExecutedCell(count=n, source=source, raised=n in known, raised_line=known.get(n))
        for n, source in enumerate(sources, 1)
    ]


def facts(**names: object) -> KernelFacts:
    """Return a kernel with these variables. A `NameFact` is used as it is; plain values become literals."""
    found = {}
    for name, value in names.items():
        plain = isinstance(value, int | float | str | list | dict | tuple)
        found[name] = (
            value
            if isinstance(value, NameFact)
            else NameFact(type_name=type(value).__name__, literal=repr(value) if plain else None)
        )
    return KernelFacts(names=found)


def job(
    *sources: str,
    train: str = "print(x)",
    facts: KernelFacts | None = None,
    raised: Mapping[int, int | None] | None = None,
    outputs: tuple[str, ...] = (),
    push: tuple[str, ...] = (),
    with_cells: tuple[int, ...] = (),
    learners_max: int = 1,
) -> Capture:
    """Run the capture over cells and a training cell, which gets the next number."""
    training = TrainingCell(
        count=len(sources) + 1,
        source=train,
        outputs=outputs,
        push=push,
        with_cells=with_cells,
        learners_max=learners_max,
    )
    return capture(cells(*sources, raised=raised), training, facts)


def prelude(made: Capture) -> list[str]:
    """Return the program's lines before the training cell, without comments and blank lines."""
    lines = made.text.split(ENTRY)[0].splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def codes(made: Capture) -> list[str]:
    return [problem.code for problem in (*made.errors, *made.warnings)]
