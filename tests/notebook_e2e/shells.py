"""A real IPython shell in this process, as a terminal has it."""

from __future__ import annotations

import atexit
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


@contextmanager
def shell(*, loaded: bool = True) -> Iterator[InteractiveShell]:
    """Create a shell with its own `__main__`, with the extension loaded in its first cell."""
    before = sys.modules["__main__"], sys.displayhook, sys.excepthook
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    InteractiveShell.clear_instance()
    one = InteractiveShell.instance(config=config, user_module=module)
    if loaded:
        run(one, "%load_ext jupyter_dlaas")
    try:
        yield one
    finally:
        one.run_line_magic("unload_ext", "jupyter_dlaas")
        atexit.unregister(one.atexit_operations)
        one.atexit_operations()
        InteractiveShell.clear_instance()
        sys.modules["__main__"], sys.displayhook, sys.excepthook = before


def run(one: InteractiveShell, source: str) -> Any:
    """Run a cell that must not fail; its value."""
    result = one.run_cell(source, store_history=True)
    result.raise_error()
    return result.result


def refusal(one: InteractiveShell, source: str) -> str:
    """Return the refusal of a cell that must fail, as the user sees it."""
    result = one.run_cell(source, store_history=True)
    assert result.error_in_exec is not None, "nothing was refused"
    return str(result.error_in_exec)
