"""States of a job, as a table. The table is the documentation, and the source of the buttons."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from jupyter_dlaas.wire.protocol import NotAllowed, State

__all__ = ["NEXT", "Event", "can", "step"]


class Event(StrEnum):
    """Event that changes a job's state. People request the first group; the second group happens."""

    SCALE = "scale"
    HALT = "halt"
    RESUME = "resume"
    CANCEL = "cancel"
    CHECKPOINT = "checkpoint"

    PLACED = "placed"
    DOWNLOADING = "downloading"
    TRAINING = "training"
    STORING = "storing"
    FINISHED = "finished"
    LEFT = "left"  # halted: checkpoint written, no process left
    STOPPED = "stopped"  # cancelled: no process left
    LOST = "lost"  # learners crashed; the job restarts on the same seats
    BROKE = "broke"  # learners crashed; the job fails
    EVICTED = "evicted"  # the pool took the seats back: the job returns to the queue


_RUNNING: Final[dict[Event, State]] = {
    Event.TRAINING: State.PROCESSING,
    Event.STORING: State.STORING,
    Event.FINISHED: State.COMPLETED,
    Event.LEFT: State.HALTED,
    Event.STOPPED: State.CANCELLED,
    Event.LOST: State.DEPLOYING,
    Event.BROKE: State.FAILED,
    Event.EVICTED: State.QUEUED,
}


def _asked(state: State, *events: Event) -> dict[Event, State]:
    """Return entries for requests that a running job accepts at once and fulfils later; the state stays until then."""
    return dict.fromkeys(events, state)


NEXT: Final[dict[State, dict[Event, State]]] = {
    State.QUEUED: {
        Event.PLACED: State.DEPLOYING,
        Event.SCALE: State.QUEUED,
        Event.HALT: State.HALTED,
        Event.CANCEL: State.CANCELLED,
        Event.BROKE: State.FAILED,
    },
    State.DEPLOYING: _RUNNING
    | _asked(State.DEPLOYING, Event.SCALE, Event.HALT, Event.RESUME, Event.CANCEL)
    | {Event.DOWNLOADING: State.DOWNLOADING},
    State.DOWNLOADING: _RUNNING | _asked(State.DOWNLOADING, Event.SCALE, Event.HALT, Event.RESUME, Event.CANCEL),
    State.PROCESSING: _RUNNING
    | _asked(State.PROCESSING, Event.SCALE, Event.HALT, Event.RESUME, Event.CANCEL, Event.CHECKPOINT),
    State.STORING: _RUNNING | _asked(State.STORING, Event.CANCEL),
    State.HALTED: {Event.RESUME: State.QUEUED, Event.CANCEL: State.CANCELLED, Event.SCALE: State.HALTED},
    State.COMPLETED: {},
    State.FAILED: {},
    State.CANCELLED: {},
}


def can(state: State, event: Event) -> bool:
    """Return whether a job in this state accepts the event."""
    return event in NEXT[state]


def step(state: State, event: Event, job: str = "the job") -> State:
    """Return the next state; the only place where a job's state changes. Raises NotAllowed, which names the job."""
    if event not in NEXT[state]:
        people = (Event.SCALE, Event.HALT, Event.RESUME, Event.CANCEL, Event.CHECKPOINT)
        asked = [e for e in people if e in NEXT[state]]
        again = f". To run it again: `jupyter dlaas retry {job}`" if event is Event.RESUME else ""
        why = f"; it accepts {', '.join(asked)}" if asked else f": it has ended{again}"
        raise NotAllowed(f"{job} is {state} and does not accept '{event}'{why}")
    return NEXT[state][event]
