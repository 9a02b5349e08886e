"""Following a job: its views, log and metrics as they come, without a gap and without a double. Standard library only.

The reader keeps the cursor, so it may be anybody's restart: the engine's, the server's, or (with a cursor that was
kept) the reader's own. What is not exactly the continuation of the cursor is not believed but asked for again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jupyter_dlaas.client import Client
from jupyter_dlaas.protocol import Cursor, JobView, Unavailable
from jupyter_dlaas.wire import DlaasError, decode

__all__ = ["Follower", "follow"]

PATIENCE_S: Final = 300.0
"""How long a follower tries to find an engine again before it gives up."""
_ODD_ANSWERS_MAX: Final = 5


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

    def messages(self) -> Iterator[dict[str, Any]]:
        """All that is newer than the cursor, then what comes, until the job is over."""
        odd = 0
        if self.view is None and self.cursor.row:  # nothing newer may ever come, so the state must be asked for
            self.view = self.client.job(self.job)
            self.job = self.view.id
        while True:
            is_over = self.view is not None and self.view.state.is_final
            batch, after = self._ask(0.0 if is_over else self.wait_s)
            handed_out = 0
            for message in batch:
                verdict = self._take(message)
                if verdict == "refuse":
                    odd += 1
                    break
                if verdict == "hand out":
                    handed_out += message.get("type") != "progress"
                    yield message
                    if message.get("type") == "gone":
                        return
            else:
                odd = 0
                if after.row > self.cursor.row:
                    self.cursor = replace(self.cursor, row=after.row)
            if odd > _ODD_ANSWERS_MAX:
                raise DlaasError(f"{self.job}: the stream does not continue where it was left; read it with logs()")
            if is_over and not handed_out and not odd:
                return

    def _ask(self, wait_s: float) -> tuple[list[dict[str, Any]], Cursor]:
        """One long poll; while there is no engine, again and again with a growing delay, within `patience_s`."""
        give_up_s, pause_s = time.monotonic() + self.patience_s, 0.1
        while True:
            try:
                return self.client.stream(self.job, self.cursor, want=self.want, wait_s=wait_s)
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
            if view.row <= self.cursor.row:
                return "pass over"
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
