"""Following a job: its views, log and metrics as they arrive, without gaps or duplicates. Standard library only.

The reader keeps the cursor, so engine and server may restart, and (with a saved cursor) the reader too. A message that
does not continue exactly at the cursor is discarded and requested again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.codec import DlaasError, decode
from jupyter_dlaas.wire.protocol import Cursor, JobView, State, Unavailable

__all__ = ["Follower", "LogLines", "follow"]

PATIENCE_S: Final = 300.0
"""Seconds for which a follower tries to reach an engine again before it gives up."""
_REJECTED_MAX: Final = 5
_PIECE: Final = 2**20
T = TypeVar("T")


@dataclass(slots=True)
class Follower:
    """Reader of a job's stream. `cursor` marks what was returned; save it to continue later. `view` is the last view.

    `messages()` yields the messages of server/WIRE.md unchanged ("job", "log", "log_skipped", "metrics", "progress",
    "gone") and ends when the job has ended, or with `ends_at_halt` is halted, and everything has been read.
    """

    client: Client
    job: str
    cursor: Cursor = field(default_factory=Cursor)
    want: Sequence[str] = ("view", "log", "metrics")
    wait_s: float = 20.0
    patience_s: float = PATIENCE_S
    view: JobView | None = None
    ends_at_halt: bool = False
    """True to end also when the job is halted: it writes nothing until it is resumed."""
    is_lossless: bool = True
    """True to read what the engine left out of a long log; False to yield its "log_skipped" message instead."""
    _was_rejected: bool = False

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield everything newer than the cursor, then new messages until the job ends."""
        rejected = 0
        if self.view is None and self.cursor.row:  # there may be no newer message, so request the state
            self.view = self.client.job(self.job)
            self.job = self.view.id
        while True:
            is_over = self.view is not None and self._ends(self.view.state)
            yielded = 0
            for message in self.once(0.0 if is_over else self.wait_s):
                yielded += message["type"] != "progress"
                yield message
                if message["type"] == "gone":
                    return
            rejected = rejected + 1 if self._was_rejected else 0
            if rejected > _REJECTED_MAX:
                raise DlaasError(f"{self.job}: the stream has a gap after the saved cursor; read the log with logs()")
            if is_over and not yielded and not rejected:
                return

    def _ends(self, state: State) -> bool:
        return state.is_final or (self.ends_at_halt and state is State.HALTED)

    def once(self, wait_s: float | None = None) -> Iterator[dict[str, Any]]:
        """Yield the result of one request, which waits up to `wait_s` (default: the follower's own) for news."""
        self._was_rejected = False
        batch, after = self._poll(self.wait_s if wait_s is None else wait_s)
        for message in batch:
            verdict = self._take(message)
            if verdict == "reject":
                self._was_rejected = True
                return
            if verdict == "yield" and message["type"] == "log_skipped" and self.is_lossless:
                yield from self._skipped(message)
            elif verdict == "yield":
                yield message
        if after.row > self.cursor.row:
            self.cursor = replace(self.cursor, row=after.row)

    def _skipped(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the log frames for a skipped range."""
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

    def _poll(self, wait_s: float) -> tuple[list[dict[str, Any]], Cursor]:
        """Send one long poll."""
        return self._patiently(lambda: self.client.stream(self.job, self.cursor, want=self.want, wait_s=wait_s))

    def _patiently(self, request: Callable[[], T]) -> T:
        """Call `request`. While there is no engine, repeat it with a growing delay for up to `patience_s`."""
        give_up_s, pause_s = time.monotonic() + self.patience_s, 0.1
        while True:
            try:
                return request()
            except Unavailable:
                if time.monotonic() > give_up_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 2)

    def _take(self, message: dict[str, Any]) -> str:
        """Advance the cursor by a message.

        Return "yield", "skip" (seen before), or "reject" (a gap or an overlap).
        """
        kind = message.get("type")
        if kind == "job":
            view = decode(JobView, message["job"], unknown="ignore")
            if view.row < self.cursor.row or view == self.view:
                return "skip"  # views of the same row may differ: a wait reason changes without an event
            self.view = view
            self.job = view.id  # a name may mean another job at the next request
            self.cursor = replace(self.cursor, row=view.row)
            return "yield"
        if kind in ("log", "log_skipped"):
            member = str(message["member"])
            verdict = _continues(message, self.cursor.logs.get(member, 0))
            if verdict == "yield":
                self.cursor = replace(self.cursor, logs={**self.cursor.logs, member: int(message["to"])})
            return verdict
        if kind == "metrics":
            verdict = _continues(message, self.cursor.metrics)
            if verdict == "yield":
                self.cursor = replace(self.cursor, metrics=int(message["to"]))
            return verdict
        if kind == "error":
            raise DlaasError(str(message.get("message", "the stream failed")))
        return "yield"


def _continues(message: dict[str, Any], have: int) -> str:
    start, end = int(message["from"]), int(message["to"])
    if start == have:
        return "yield" if end > start else "skip"
    return "skip" if end <= have else "reject"


def follow(
    client: Client, job: str, cursor: Cursor | None = None, *, want: Sequence[str] = ("view", "log", "metrics")
) -> Iterator[dict[str, Any]]:
    """Return the messages of a job from `cursor` until it ends. Use Follower to keep the cursor."""
    return Follower(client, job, cursor or Cursor(), want).messages()


@dataclass(slots=True)
class LogLines:
    """Whole lines from log frames, as a terminal shows them, each marked with its learner (`L4`) on request."""

    is_marked: bool = False
    member: int | None = None
    """Learner whose lines are returned; None: all."""
    _rest: dict[int, str] = field(default_factory=dict)

    def feed(self, message: dict[str, Any]) -> Iterator[str]:
        """Yield the lines that are now complete. Messages other than log frames yield none."""
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
        """Yield the remaining text without a newline."""
        for member, text in sorted(self._rest.items()):
            yield self._marked(member, text)
        self._rest.clear()

    def _marked(self, member: int, line: str) -> str:
        shown = line.removesuffix("\r").rpartition("\r")[2]  # keep a redrawn progress bar's last state
        return f"L{member}  {shown}" if self.is_marked else shown
