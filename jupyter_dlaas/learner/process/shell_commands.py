"""Notebook shell commands in a job: `dlaas.shell` for `!command`, `dlaas.shell_lines` for `names = !command`."""

from __future__ import annotations

import codecs
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any, Final

__all__ = ["Lines", "shell", "shell_lines"]

_DOLLARS: Final = re.compile(r"(.*?)\$(\$?[^\W\d][\w.]*)(?=(?:[^']*'[^']*')*[^']*$)", re.DOTALL)
_CHUNK: Final = 65_536


class Lines(list[str]):
    """The lines of a command's output; `s`, `n` and `l` work as in IPython's list."""

    @property
    def l(self) -> list[str]:  # noqa: E743 - IPython's name
        """The lines."""
        return self

    @property
    def n(self) -> str:
        """The lines as one text."""
        return "\n".join(self)

    nlstr = n

    @property
    def s(self) -> str:
        """The lines joined by spaces."""
        return " ".join(self)

    spstr = s


def shell(command: str, **_: object) -> None:
    """Run a command in the shell; its output goes to the log. `{name}` and `$name` are expanded as in IPython."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    command = _filled_in(command, _names_of_caller())
    sys.stdout.flush()
    with subprocess.Popen(  # noqa: S602 - the user's own command
        command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None, "it was asked for"
        while data := process.stdout.read1(_CHUNK):  # type: ignore[attr-defined]  # a BufferedReader
            sys.stdout.write(decoder.decode(data))
            sys.stdout.flush()
    sys.stdout.write(decoder.decode(b"", final=True))
    if process.returncode:
        print(f"[exit code {process.returncode}: {command}]", file=sys.stderr)


def shell_lines(command: str, split: bool = True, **_: object) -> Lines | str:
    """Run a command in the shell and return the lines of its output; one text if `split` is False."""
    command = _filled_in(command, _names_of_caller())
    done = subprocess.run(  # noqa: S602 - the user's own command
        command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    text = done.stdout.decode("utf-8", errors="replace").replace("\r\n", "\n")
    return Lines(text.splitlines()) if split else text


def _names_of_caller() -> Mapping[str, Any]:
    frame = sys._getframe(2)
    return {**frame.f_globals, **frame.f_locals}


def _filled_in(command: str, names: Mapping[str, Any]) -> str:
    """Return the command with variables expanded; unchanged if an expression cannot be evaluated here."""
    try:
        return "".join(_parts(command, names))
    except Exception:  # noqa: BLE001 - a failing expression of the user's, or no expression at all: `awk '{print $1}'`
        return command


def _parts(command: str, names: Mapping[str, Any]) -> Iterator[str]:
    formatter = Formatter()
    for literal, expression, spec, conversion in formatter.parse(command):
        at = 0
        for found in _DOLLARS.finditer(literal):
            yield found[1]
            name = found[2]
            yield name if name.startswith("$") else str(_value(name, names))
            at = found.end()
        yield literal[at:]
        if expression is not None:
            value = _value(f"{expression}:{spec}" if spec else expression, names)
            yield format(formatter.convert_field(value, conversion), "")


def _value(expression: str, names: Mapping[str, Any]) -> Any:
    return eval(expression, dict(names))  # noqa: S307 - the user's own expression
