"""Place of a crash in native code: the user's line on the stack that the fault handler writes to the log."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_dlaas.failures.cell_map import CellMap
from jupyter_dlaas.failures.crash_location import crash_location
from jupyter_dlaas.jobdir.journal_file import read_facts
from jupyter_dlaas.runtime.guardian.journal_writer import JournalWriter
from jupyter_dlaas.runtime.guardian.learner_process import Learner
from jupyter_dlaas.runtime.system.process import Identity
from jupyter_dlaas.wire.journal import LearnerDown

PROGRAM = """\
import ctypes, faulthandler
faulthandler.enable()
def read(address):
    return ctypes.string_at(address)
read(0)
"""


@pytest.mark.parametrize(
    ("spec", "place"),
    [('{"cells": {"1-5": "cell [7]:2"}}', ("cell [7]", 5)), ('{"script": "/home/ana/net.py"}', ("net.py", 4))],
)
def test_crash_names_the_users_line_in_journal_and_failure(tmp_path: Path, spec: str, place: tuple[str, int]) -> None:
    folder = tmp_path / "jöb"
    (folder / "learner-0").mkdir(parents=True)
    (folder / "train.py").write_text(PROGRAM)
    (folder / "spec.json").write_text(f'{{"spec": {spec}}}')
    with (folder / "learner-0" / "stdout.log").open("wb") as log:
        code = subprocess.run([sys.executable, folder / "train.py"], stdout=log, stderr=log, check=False).returncode
    assert code == -signal.SIGSEGV

    writer = JournalWriter(folder)
    failure = writer.down(Learner(0, 1, 0, Identity(1, 1, "boot"), signal=signal.SIGSEGV))

    assert failure is not None
    assert failure.code == "segfault"
    assert failure.where is not None
    assert (failure.where.label, failure.where.line, failure.where.function) == (*place, "read")
    (down,) = [fact for fact in read_facts(folder / "journal.jsonl")[0] if isinstance(fact, LearnerDown)]
    assert down.failure == failure


LOG = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f0000000001 (most recent call first):
  File "/job/train.py", line 1 in worker

Fatal Python error: {message}

Thread 0x00007f0000000002 (most recent call first):
  File "/job/train.py", line 2 in watch

Current thread 0x00007f0000000001 [python] (most recent call first):
  File "/usr/lib/python3.11/site-packages/torch/nn/functional.py", line 9 in linear
  File "/job/{file}", line 3 in step
  File "/job/train.py", line 4 in <module>

Extension modules: numpy
"""


@pytest.mark.parametrize(
    ("number", "message", "file", "place"),
    [
        (signal.SIGABRT, "Aborted", "train.py", ("train.py", 3)),
        (signal.SIGABRT, "_Py_CheckRecursiveCall: Cannot recover", "train.py", ("train.py", 3)),
        (signal.SIGFPE, "Floating-point exception", "files/net.py", ("net.py", 3)),
        (signal.SIGSEGV, "Segmentation fault", "library.py", ("train.py", 4)),
        (signal.SIGSEGV, "Aborted", "train.py", ("train.py", 1)),
        (signal.SIGBUS, "Segmentation fault", "train.py", None),
    ],
)
def test_crash_location_is_that_of_the_last_matching_stack(
    number: int, message: str, file: str, place: tuple[str, int] | None
) -> None:
    where = crash_location(
        LOG.format(message=message, file=file), number, CellMap(Path("/job/train.py"), {}), "/job/files"
    )

    assert (where and (where.label, where.line)) == place
