"""States and events of a job, from the state table and the journal's records."""

from __future__ import annotations

from typing import Final

from dlaas_server.core.model.states import NEXT, Event
from docs.generate.markdown import code, sentence, table
from jupyter_dlaas.wire.journal import FACT_TYPES, FactKind
from jupyter_dlaas.wire.protocol import State
from tests.state_diagram import document

__all__ = ["MEANINGS", "REQUESTS", "diagram", "events", "facts", "states"]

MEANINGS: Final = {
    State.QUEUED: "The job waits for devices. The card and `jupyter dlaas why` give the reason and a start estimate.",
    State.DEPLOYING: "Devices are reserved, and the learners start.",
    State.DOWNLOADING: "Files and objects of the job are put in place.",
    State.PROCESSING: "The program runs.",
    State.STORING: "The program has ended, and its results are written.",
    State.COMPLETED: "The program ended, and its results can be loaded.",
    State.HALTED: "The job has released its devices and waits for `resume`.",
    State.FAILED: "The program failed and is not retried. The card names cause, line and advice.",
    State.CANCELLED: "A user cancelled the job.",
}
REQUESTS: Final = (Event.SCALE, Event.HALT, Event.RESUME, Event.CANCEL, Event.CHECKPOINT)
"""Events that people ask for."""
_EVENTS: Final = {
    Event.SCALE: "Another number of learners was requested.",
    Event.HALT: "A halt was requested.",
    Event.RESUME: "A resume was requested.",
    Event.CANCEL: "A cancel was requested.",
    Event.CHECKPOINT: "A checkpoint was requested.",
    Event.PLACED: "The scheduler gave the job its devices.",
    Event.DOWNLOADING: "Files of the job are being put in place.",
    Event.TRAINING: "The learners run the program.",
    Event.STORING: "The program ended, and results are written.",
    Event.FINISHED: "All results are stored.",
    Event.LEFT: "The learners of the halted job have stopped, with a checkpoint if the program can write one.",
    Event.STOPPED: "The cancelled job has no process left.",
    Event.LOST: "Learners failed; the job restarts on the same devices.",
    Event.BROKE: "Learners failed; the job is not retried.",
    Event.EVICTED: "The job lost its devices for a reason outside of it, and returns to the queue.",
}


def states() -> str:
    """Render each state with its meaning and the requests that it accepts."""
    rows = [
        (code(state), MEANINGS[state], ", ".join(code(one) for one in REQUESTS if one in NEXT[state]) or "–")
        for state in State
    ]
    return table(("state", "meaning", "requests it accepts"), rows)


def diagram() -> str:
    """Render the state diagram of `server/states.md`."""
    return "```{mermaid}\n" + document().split("```mermaid\n")[1].split("```")[0] + "```\n"


def events() -> str:
    """Render the events that change a job's state."""
    rows = [(code(event), "request" if event in REQUESTS else "event", _EVENTS[event]) for event in Event]
    return table(("event", "kind", "meaning"), rows)


def facts() -> str:
    """Render the kinds of lines in a job's journal."""
    said = {kind: " ".join((record.__doc__ or "").split()) for kind, record in FACT_TYPES.items()}
    return table(("fact", "meaning"), [(code(kind), sentence(said[kind])) for kind in FactKind])
