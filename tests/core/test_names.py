"""The public names of the package, found without importing what they need."""

from __future__ import annotations

import subprocess
import sys

import jupyter_dlaas


def test_every_public_name_is_there() -> None:
    assert all(getattr(jupyter_dlaas, name) is not None for name in jupyter_dlaas.__all__)


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'kubernetes', 'ipywidgets', 'tornado', 'jupyter_server', 'IPython', 'numpy'}"
    code = f"import sys, jupyter_dlaas; print(sorted({heavy} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
