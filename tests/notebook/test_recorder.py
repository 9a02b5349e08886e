"""Record of executed cells in a real shell. Each runs in its own process, since a process has one IPython shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import json, signal
from dataclasses import asdict
from traceback import walk_tb
from IPython.core.interactiveshell import InteractiveShell
from jupyter_dlaas.kernel.recorder import Recorder, facts_of

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
shell = InteractiveShell.instance()
shell.run_cell("early = 1", store_history=True)
shell.run_cell("early + 1", store_history=True)
recorder = Recorder(shell)
shell.run_cell("\\n\\nx = 1\\ny = str(int('x'))\\nz = 2", store_history=True)
shell.run_cell("%%time\\nok = 3\\nbad()", store_history=True)
shell.run_cell("quiet = 1", store_history=False)
shell.run_cell("for", store_history=True)
stop = "import os, signal\\ntry:\\n    signal.raise_signal(2)\\n    signal.pause()\\nexcept{}:\\n    x = 2"
for source in ("x", "x;", "print(x)", stop.format(""), stop.format(" IndexError")):
    shell.run_cell(source, store_history=True)
error = shell.run_cell("signal.raise_signal(2)", store_history=False).error_in_exec
print("RAISED_IN", json.dumps([frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)][-1]))
handlers = [signal.getsignal(signal.SIGINT) is signal.default_int_handler]
signal.signal(signal.SIGINT, print)
shell.user_ns["recorder"] = recorder
shell.run_cell("signal.signal(signal.SIGINT, min) and 1", store_history=True)
handlers += [signal.getsignal(signal.SIGINT) is min]
shell.run_cell("recorder.close()", store_history=True)
handlers += [signal.getsignal(signal.SIGINT) is min]
print("HANDLERS", json.dumps(handlers))
shell.run_cell("late = 1", store_history=True)
print("CELLS", json.dumps([asdict(cell) for cell in recorder.cells()]))
print("NAMES", json.dumps(sorted(facts_of(shell, recorder.cells()).names)))
"""


def _lines(directory: Path) -> dict[str, Any]:
    environment = os.environ | {"IPYTHONDIR": str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    found = (line.partition(" ") for line in done.stdout.splitlines())
    return {key: json.loads(rest) for key, _, rest in found if key in {"CELLS", "NAMES", "HANDLERS", "RAISED_IN"}}


def test_recorder_keeps_order_errors_lines_and_durations(tmp_path: Path) -> None:
    found = _lines(tmp_path)

    assert [(c["count"], c["raised"], c["raised_line"]) for c in found["CELLS"]] == [
        (1, False, None),
        (2, False, None),
        (3, True, 4),
        (4, True, 3),
        (5, True, None),
        *((count, False, None) for count in (6, 7, 8, 9)),
        (10, True, 3),
        (11, False, None),
    ]
    assert [c["raised_in"] for c in found["CELLS"]][:3] == ["", "", "int('x')"]
    assert [c["duration_s"] is not None for c in found["CELLS"]] == [False, False, *[True] * 9]
    values = [False, True, False, False, False, True, None, *[False] * 3, True]
    assert [c["has_value"] for c in found["CELLS"]] == values
    assert [c["interrupted"] for c in found["CELLS"]] == [*[False] * 8, True, True, False]
    assert found["RAISED_IN"] == "<module>", "the traceback of an interrupt ends in the cell"
    assert found["HANDLERS"] == [True, True, True], "the notebook's own handler stays"
    assert found["NAMES"] == ["early", "late", "ok", "os", "quiet", "recorder", "signal", "x"]
