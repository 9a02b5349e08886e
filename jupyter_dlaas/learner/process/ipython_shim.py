"""A replacement for `get_ipython()` in a job: returns None, or the part of IPython's shell that the program uses."""

from __future__ import annotations

import ast
import builtins
import os
import sys
from typing import Any, Final, NoReturn

from jupyter_dlaas.learner.environment import import_hooks
from jupyter_dlaas.learner.process.shell_commands import shell, shell_lines

__all__ = ["JobShell", "install"]

_COMMANDS: Final = frozenset(
    {"getoutput", "magic", "run_cell", "run_cell_magic", "run_line_magic", "system", "system_piped", "system_raw"}
)
_NO_EFFECT: Final = frozenset({
    "autoreload", "autosave", "colors", "config", "load_ext", "matplotlib", "pdb", "precision", "pylab", "reload_ext",
    "unload_ext", "xmode",
})  # fmt: skip
"""Line magics that configure a notebook and have no effect in a job."""


class JobShell:
    """The commands of IPython's shell that a job can run; others raise a RuntimeError."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.kernel = None

    system = system_raw = system_piped = staticmethod(shell)
    getoutput = staticmethod(shell_lines)

    @property
    def user_ns(self) -> dict[str, Any]:
        """The program's global names."""
        return vars(sys.modules["__main__"])

    def run_line_magic(self, name: str, line: str = "", *_: object) -> object:
        """Run a line magic: shell commands, `%cd` and `%env`. Magics that only configure a notebook do nothing."""
        if name in ("sx", "system"):
            return shell_lines(line)
        if name == "cd":
            os.chdir(os.path.expanduser(line.strip() or "~"))  # noqa: PTH111 - a text, as typed
            return None
        if name in ("env", "set_env") and line.strip():
            key, _equals, setting = line.strip().replace(" ", "=", "=" not in line).partition("=")
            os.environ[key.strip()] = setting.strip()
            return None
        if name not in _NO_EFFECT:
            self._refuse(f"%{name} {line}".strip())
        return None

    def run_cell_magic(self, name: str, line: str, cell: str) -> None:
        """Run a cell magic of the shell: %%bash, %%sh or %%script."""
        if name not in ("bash", "sh", "script"):
            self._refuse(f"%%{name} {line}".strip())
        shell(cell)

    def magic(self, text: str) -> object:
        """Run a line magic given as typed."""
        name, _, line = text.lstrip("% ").partition(" ")
        return self.run_line_magic(name, line)

    def run_cell(self, source: str, *_: object, **__: object) -> None:
        """Run Python code in the program's global names."""
        exec(compile(source, "<cell>", "exec"), self.user_ns)  # noqa: S102 - the user's own program

    def _refuse(self, command: str) -> NoReturn:
        raise RuntimeError(
            f"a job cannot run the notebook command {command}. Move it to a cell above the training cell."
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"get_ipython().{name} needs the notebook's kernel; a job runs without one")


def install(program: str) -> None:
    """Install `get_ipython`: it returns a shell if the program runs commands, otherwise None."""
    if not _uses_commands(program):
        vars(builtins)["get_ipython"] = lambda: None
        return
    given = JobShell()
    vars(builtins)["get_ipython"] = lambda: given if _is_program() else None
    import_hooks.after("IPython", lambda module: _patch(module, given))


def _patch(module: Any, given: JobShell) -> None:
    original = module.get_ipython

    def get_ipython() -> Any:
        return given if _is_program() else original()

    module.get_ipython = get_ipython


def _is_program() -> bool:
    """Return whether the program itself calls, not a library that looks for a notebook."""
    return sys._getframe(2).f_globals.get("__name__") == "__main__"


def _uses_commands(program: str) -> bool:
    """Return whether a program runs commands through IPython's shell."""
    if "get_ipython" not in program:
        return False
    try:
        nodes = list(ast.walk(ast.parse(program)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    names = {part for node in nodes for part in _names(node)}
    uses = (node for node in nodes if isinstance(node, ast.Attribute) and node.attr in _COMMANDS)
    return "get_ipython" in names and any(not _is_os(node.value) for node in uses)


def _names(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return (name,)
        case _:
            return ()


def _is_os(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("os", "platform")
