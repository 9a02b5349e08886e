"""A learner's line to its guardian."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from jupyter_dlaas.jobdir.atomic_files import bind
from jupyter_dlaas.learner.control.guardian_channel import _close

_REPORTS = """
import sys
from pathlib import Path
from jupyter_dlaas.learner.control import guardian_channel as control
from jupyter_dlaas.wire.protocol import Note
control._TAKE_S = 0.1
one = control.Control(Path(sys.argv[1]), 3)
one.start()
for _ in range(10):
    one.report(Note(code="note", text="x" * 200_000))  # more than a connection holds
sys.stdin.read()
"""


def test_unresponsive_guardian_blocks_no_learner_and_is_called_again(tmp_path: Path) -> None:
    with bind(socket.SOCK_STREAM, tmp_path / "guardian.sock", listen=8) as listener:
        listener.settimeout(30.0)
        learner = subprocess.Popen([sys.executable, "-c", _REPORTS, str(tmp_path)], stdin=subprocess.PIPE)
        try:
            with listener.accept()[0], listener.accept()[0] as again:
                again.settimeout(30.0)
                assert again.recv(1 << 16).startswith(b'{"t":"hello","member":3')
        finally:
            learner.communicate()
    assert learner.returncode == 0


def test_a_descriptor_that_the_program_uses_again_is_left_open() -> None:
    ours, theirs = socket.socketpair()
    number = ours.fileno()
    os.close(number)
    other = os.open(os.devnull, os.O_RDONLY)
    if other != number:
        os.dup2(other, number)
        os.close(other)
    with theirs:
        _close(ours)

    os.close(number)  # raises where it was closed


def test_closing_a_connection_that_the_program_closed_raises_nothing() -> None:
    ours, theirs = socket.socketpair()
    os.close(ours.fileno())
    with theirs:
        _close(ours)
