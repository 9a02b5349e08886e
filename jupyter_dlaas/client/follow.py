"""Following a job: its views, log and metrics as they come, without a gap and without a double. Standard library only.

The reader keeps the cursor, so it may be anybody's restart: the engine's, the server's, or (with a cursor that was
kept) the reader's own. What is not exactly the continuation of the cursor is not believed but asked for again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.codec import DlaasError, decode
from jupyter_dlaas.wire.protocol import Cursor, JobView, Unavailable

__all__ = ["Follower", "LogLines", "follow"]

PATIENCE_S: Final = 300.0
"""How long a follower tries to find an engine again before it gives up."""
_ODD_ANSWERS_MAX: Final = 5
_PIECE: Final = 2**20
T = TypeVar("T")


@dataclass(slots=True)
class Follower:
    """Reads a job's stream. `cursor` is what has been handed out; keep it to go on later. `view` is the last view.

    `messages()` yields the messages of server/WIRE.md as they are ("job", "log", "log_skipped", "metrics", "progress",
    "gone") and ends when the job is over and all of it has been read.
    """

    client: Client
    job: str
    cursor: Cursor = field(default_factory=Cursor)
    want: Sequence[str] = ("view", "log", "metrics")
    wait_s: float = 20.0
    patience_s: float = PATIENCE_S
    view: JobView | None = None
    is_lossless: bool = True
    """Where the engine jumps to the tail of a long log, read what it left out. False: hand out its mark."""
    _was_odd: bool = False

    def messages(self) -> Iterator[dict[str, Any]]:
        """All that is newer than the cursor, then what comes, until the job is over."""
        odd = 0
        if self.view is None and self.cursor.row:  # nothing newer may ever come, so the state must be asked for
            self.view = self.client.job(self.job)
            self.job = self.view.id
        while True:
            is_over = self.view is not None and self.view.state.is_final
            handed_out = 0
            for message in self.once(0.0 if is_over else self.wait_s):
                handed_out += message["type"] != "progress"
                yield message
                if message["type"] == "gone":
                    return
            odd = odd + 1 if self._was_odd else 0
            if odd > _ODD_ANSWERS_MAX:
                raise DlaasError(f"{self.job}: the stream does not continue where it was left; read it with logs()")
            if is_over and not handed_out and not odd:
                return

    def once(self, wait_s: float | None = None) -> Iterator[dict[str, Any]]:
        """What one request brings; it waits up to `wait_s` (the follower's own, if not given) for something new."""
        self._was_odd = False
        batch, after = self._ask(self.wait_s if wait_s is None else wait_s)
        for message in batch:
            verdict = self._take(message)
            if verdict == "refuse":
                self._was_odd = True
                return
            if verdict == "hand out" and message["type"] == "log_skipped" and self.is_lossless:
                yield from self._skipped(message)
            elif verdict == "hand out":
                yield message
        if after.row > self.cursor.row:
            self.cursor = replace(self.cursor, row=after.row)

    def _skipped(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What lies between two frames of a log, as frames."""
        at, end, member = int(message["from"]), int(message["to"]), int(message["member"])
        while at < end:
            limit = min(end - at, _PIECE)
            part = self._patiently(partial(self.client.log, self.job, member=member, offset=at, limit=limit))
            if int(part["from"]) > at:  # the middle of a long log is not kept
                yield {**message, "from": at, "to": min(int(part["from"]), end)}
                at = int(part["from"])
                continue
            if int(part["to"]) <= at:
                raise DlaasError(f"{self.job}: the log of learner {member} ends at {at}, before {end}")
            yield {"type": "log", "job": self.job, "member": member, "from": at, "to": part["to"], "text": part["text"]}
            at = int(part["to"])

    def _ask(self, wait_s: float) -> tuple[list[dict[str, Any]], Cursor]:
        """One long poll."""
        return self._patiently(lambda: self.client.stream(self.job, self.cursor, want=self.want, wait_s=wait_s))

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask; while there is no engine, again and again with a growing delay, within `patience_s`."""
        give_up_s, pause_s = time.monotonic() + self.patience_s, 0.1
        while True:
            try:
                return ask()
            except Unavailable:
                if time.monotonic() > give_up_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 2)

    def _take(self, message: dict[str, Any]) -> str:
        """Move the cursor over a message: "hand out", "pass over" (seen before), or "refuse" (a gap, half seen)."""
        kind = message.get("type")
        if kind == "job":
            view = decode(JobView, message["job"], unknown="ignore")
            if view.row < self.cursor.row or view == self.view:
                return "pass over"  # of the same row it may differ: a reason to wait changes without an event
            self.view = view
            self.job = view.id  # a name could mean another job by the next request
            self.cursor = replace(self.cursor, row=view.row)
            return "hand out"
        if kind in ("log", "log_skipped"):
            member = str(message["member"])
            verdict = _continues(message, self.cursor.logs.get(member, 0))
            if verdict == "hand out":
                self.cursor = replace(self.cursor, logs={**self.cursor.logs, member: int(message["to"])})
            return verdict
        if kind == "metrics":
            verdict = _continues(message, self.cursor.metrics)
            if verdict == "hand out":
                self.cursor = replace(self.cursor, metrics=int(message["to"]))
            return verdict
        if kind == "error":
            raise DlaasError(str(message.get("message", "the stream failed")))
        return "hand out"


def _continues(message: dict[str, Any], have: int) -> str:
    start, end = int(message["from"]), int(message["to"])
    if start == have:
        return "hand out" if end > start else "pass over"
    return "pass over" if end <= have else "refuse"


def follow(
    client: Client, job: str, cursor: Cursor | None = None, *, want: Sequence[str] = ("view", "log", "metrics")
) -> Iterator[dict[str, Any]]:
    """The messages of a job from `cursor` on, until it is over; see Follower where the cursor must be kept."""
    return Follower(client, job, cursor or Cursor(), want).messages()


@dataclass(slots=True)
class LogLines:
    """Log frames as whole lines, as a terminal shows them: each learner's own, marked `L4` where there are several."""

    is_marked: bool = False
    member: int | None = None
    """Only this learner's lines; None: all."""
    _rest: dict[int, str] = field(default_factory=dict)

    def feed(self, message: dict[str, Any]) -> Iterator[str]:
        """The lines that are whole now. Other messages than log frames give none."""
        member = message.get("member")
        if message.get("type") not in ("log", "log_skipped") or (self.member is not None and member != self.member):
            return
        assert isinstance(member, int)
        if message["type"] == "log_skipped":
            yield f"... {int(message['to']) - int(message['from']):,} bytes skipped"
            return
        *whole, rest = (self._rest.pop(member, "") + str(message["text"])).split("\n")
        if rest:
            self._rest[member] = rest
        yield from (self._marked(member, line) for line in whole)

    def rest(self) -> Iterator[str]:
        """What did not end in a newline."""
        for member, text in sorted(self._rest.items()):
            yield self._marked(member, text)
        self._rest.clear()

    def _marked(self, member: int, line: str) -> str:
        shown = line.removesuffix("\r").rpartition("\r")[2]  # a progress bar redraws its line: the last drawing stands
        return f"L{member}  {shown}" if self.is_marked else shown
