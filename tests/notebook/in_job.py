"""Run by test_notebooks.py as a process of its own: train.py's prelude as `__main__`, then fingerprints of names."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

from jupyter_dlaas.capture.render import ENTRY
from jupyter_dlaas.transfer.pushed_objects import load_pushed
from tests.notebook.fingerprint import fingerprint


def main(program: str, names: list[str]) -> dict[str, str]:
    import jupyter_dlaas

    vars(jupyter_dlaas)["pushed"] = lambda *wanted: load_pushed(Path("pushed.bin"), wanted)
    space = types.ModuleType("__main__")
    sys.modules["__main__"] = space
    sys.path.insert(0, "")
    exec(compile(program.split(ENTRY)[0], "train.py", "exec", dont_inherit=True), space.__dict__)
    return {name: fingerprint(vars(space)[name]) if name in vars(space) else "not bound" for name in names}


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(main(asked["program"], asked["names"])))
