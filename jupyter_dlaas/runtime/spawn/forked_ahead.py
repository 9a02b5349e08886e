"""Processes that are forked ahead of their use and wait for it on a socket."""

from __future__ import annotations

import importlib
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jupyter_dlaas.runtime.spawn import launch
from jupyter_dlaas.runtime.spawn.launch import Order

__all__ = ["Parked", "fork_ahead", "give", "wait_as_learner"]

REHEARSAL: Final = "jupyter_dlaas.learner.process.rehearsal"


@dataclass(slots=True)
class Parked:
    """Process that was forked ahead and ends when `line` is closed without a message."""

    pid: int
    line: socket.socket


def fork_ahead(child: Callable[[socket.socket], None]) -> Parked:
    """Fork a process that runs `child` with its end of the line. Raise OSError."""
    mine, theirs = socket.socketpair()
    pid = launch.fork(lambda: child(theirs))
    theirs.close()
    return Parked(pid, mine)


def give(parked: Parked, order: Order) -> int | None:
    """Let a parked learner carry out an order, and return its pid; None if it is gone."""
    return parked.pid if launch.give(parked.line, order) else None


def wait_as_learner(line: socket.socket, quiet_s: float = 0.0) -> None:
    """Rehearse a learner's start, and wait for an order. Runs in the process that was forked ahead.

    `quiet_s`: seconds without an order before the long part of the rehearsal.
    """
    launch.close_all_but((line.fileno(),))
    rehearsal = importlib.import_module(REHEARSAL)
    rehearsal.rehearse(lambda within_s: bool(select.select([line], [], [], within_s)[0]), quiet_s)
    launch.await_order(line)
