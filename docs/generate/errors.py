"""Failures of jobs, from the failure table, and errors of requests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Final

from docs.generate.attributes import first_line
from docs.generate.markdown import code, sentence, table
from docs.generate.platform_failures import platform_failures
from jupyter_dlaas.failures.failure_row import Row
from jupyter_dlaas.failures.failure_table import ROWS
from jupyter_dlaas.wire.protocol import ERRORS, Cause

__all__ = ["api_errors", "causes", "failures"]

_CAUSES: Final = {
    Cause.YOUR_CODE: "The program raised an error or ended itself. Not retried.",
    Cause.YOUR_DATA: "The data is not what the program expects. Not retried.",
    Cause.RESOURCES: "Memory, disk space, processes or open files ran out. Not retried.",
    Cause.HARDWARE: "A device or node failed. Retried, on other devices if the device failed.",
    Cause.EVICTED: "Something outside of the job ended it. Retried.",
    Cause.HANG: "A learner made no progress for too long. Retried.",
    Cause.PLATFORM: "jupyter_dlaas or the system around it failed. Retried.",
    Cause.UNKNOWN: "The process ended without a recognisable error. Retried.",
}
_ERRORS: Final = {"internal": "Error in the engine. `engine.log` in the pool's directory has the details."}
"""Errors whose class says more than a caller needs."""


def causes() -> str:
    """Render the causes of failures."""
    return table(("cause", "meaning"), [(code(cause), _CAUSES[cause]) for cause in Cause])


def failures() -> str:
    """Render all failures: one section for each cause, one part for each code, one entry for each row of the table."""
    others = [made for made in platform_failures() if made.code not in {row.code for row in ROWS}]
    parts = []
    for cause in Cause:
        rows = [row for row in ROWS if row.cause is cause]
        made = [one for one in others if one.cause is cause]
        if not rows and not made:
            continue
        parts.append(f"## Cause: {cause}\n")
        for name in dict.fromkeys(row.code for row in rows):
            parts.append(f"### {code(name)}\n")
            parts += [entry(row) for row in rows if row.code == name]
        for one in made:
            said = sentence(one.what.strip("…;: ")) or "Found while the job runs."
            parts.append(f"### {code(one.code)}\n\n- {escaped(said)}" + advice(one.advice))
    return "\n".join(parts)


def advice(text: str) -> str:
    """Render advice below an entry."""
    return f"\n\n  **What to do:** {escaped(text)}\n" if text.strip("…") else "\n"


def entry(row: Row) -> str:
    """Render one row: what it matches and what it advises."""
    return f"- {'; '.join(conditions(row)) or 'Any other error'}." + advice(row.advice)


def conditions(row: Row) -> Iterator[str]:
    """Yield what must hold for a row to match."""
    if row.raised:
        yield "Exception " + " or ".join(code(one) for one in row.raised)
    if row.message is not None:
        yield "message like " + code(row.message) if row.raised else "Message like " + code(row.message)
    if row.traced is not None:
        yield "traceback like " + code(row.traced)
    if row.signal is not None:
        yield "Ended by " + code(signal.Signals(row.signal).name)
    if row.exit_code is not None:
        yield "Ended with exit code " + code(str(row.exit_code))
    if row.out_of_memory is not None:
        yield (
            "while" if row.out_of_memory else "but no time when"
        ) + " the machine killed processes for lack of memory"
    if row.has_gpus is not None:
        yield "in a learner " + ("with GPUs" if row.has_gpus else "without a GPU")


def escaped(text: str) -> str:
    """Return a sentence of the product as Markdown; backticks stay."""
    return (
        sentence(text).replace("<", "\\<").replace("*", "\\*").replace("_", "\\_")
        if "`" not in text
        else sentence(text)
    )


def api_errors() -> str:
    """Render the error codes of the REST API."""
    rows = [
        (code(name), code(str(kind.http_status)), sentence(_ERRORS.get(name) or first_line(kind)))
        for name, kind in ERRORS.items()
    ]
    return table(("code", "HTTP status", "meaning"), rows)
