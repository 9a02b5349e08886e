"""Options of `%%train` and verbs of the command line, from their parsers."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from docs.generate.markdown import code, sentence, table
from jupyter_dlaas.api import jobs
from jupyter_dlaas.cli import main as command
from jupyter_dlaas.cli.parser import build
from jupyter_dlaas.kernel import magics

__all__ = [
    "command_line",
    "exit_codes",
    "magic_verbs",
    "submit_options",
    "top_parser",
    "train_options",
    "train_parser",
    "verbs",
]


def top_parser() -> argparse.ArgumentParser:
    """Return the parser of `jupyter dlaas`."""
    return build()


def train_parser() -> argparse.ArgumentParser:
    """Return the parser of a line of `%%train`."""
    method: Any = magics.DlaasMagics.train
    parser: argparse.ArgumentParser = method.parser
    return parser


def verbs() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the command line's verbs."""
    for action in top_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the command line has no verbs")


def shown(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments that help shows, without `--help`."""
    for action in parser._actions:
        if action.help != argparse.SUPPRESS and not isinstance(
            action, argparse._HelpAction | argparse._SubParsersAction
        ):
            yield action


def row(action: argparse.Action) -> tuple[str, str]:
    """Return an argument as it is typed, and its description: its own, or that of the same option of `%%train`."""
    said = action.help or next(
        (one.help or "" for one in shown(train_parser()) if set(one.option_strings) & set(action.option_strings)), ""
    )
    value = ""
    if action.nargs != 0:
        choices = "|".join(map(str, action.choices)) if action.choices is not None else None
        value = str(action.metavar or choices or action.dest.upper())
    if not action.option_strings:
        return code(f"[{value}]" if action.nargs in ("?", "*") else value), sentence(said)
    names = ", ".join(code(f"{name} {value}".strip()) for name in action.option_strings)
    return names, sentence(said)


def arguments(actions: Iterable[argparse.Action]) -> str:
    """Render arguments as a table."""
    return table(("argument", "meaning"), [row(action) for action in actions])


def train_options() -> str:
    """Render the options of `%%train` in the groups of its help."""
    parser = train_parser()
    parts = []
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action in set(shown(parser))]
        if actions:
            title = {"positional arguments": "Name", "options": "Options"}.get(group.title or "", group.title or "")
            parts.append(f"### {sentence(title).rstrip('.')}\n\n{arguments(actions)}")
    return "\n".join(parts)


def submit_options() -> str:
    """Render the options of `dlaas.submit`, with the descriptions of the same options on a command line."""
    meanings = {
        action.dest: action.help or "" for parser in (train_parser(), verbs()["submit"]) for action in shown(parser)
    } | {"wait": "wait until the job has completed"}
    rows = []
    for name, parameter in inspect.signature(jobs.submit).parameters.items():
        if meanings.get(name):
            rows.append((code(name), code(repr(parameter.default)), sentence(meanings[name])))
    return table(("option", "default", "meaning"), rows)


def magic_verbs() -> str:
    """Render the verbs of `%dlaas`."""
    rows = [(code(f"%dlaas {name}"), sentence(magics.SUMMARIES[name])) for name in magics.VERBS]
    return table(("magic", "what it does"), rows)


def command_line() -> str:
    """Render every verb of `jupyter dlaas` with its arguments."""
    top = top_parser()
    names = {action.dest for action in shown(top)}
    parts = ["## Options of all verbs\n\n" + arguments(shown(top))]
    for name, parser in verbs().items():
        own = [action for action in shown(parser) if action.dest not in names]
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        usage = re.sub(r" \[(-h|--json|--pool POOL)\]", "", usage)
        usage = textwrap.fill(usage, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        body = arguments(own) if own else ""
        parts.append(f"## {code(name)}\n\n{sentence(parser.description or '')}\n\n```text\n{usage}\n```\n\n{body}")
    return "\n".join(parts)


def exit_codes() -> str:
    """Render the exit codes that the command line's docstring lists."""
    text = " ".join((command.__doc__ or "").partition("Exit codes: ")[2].split()).rstrip(".")
    return table(
        ("exit code", "meaning"), [(code(one.split()[0]), sentence(one.partition(" ")[2])) for one in split(text)]
    )


def split(text: str) -> list[str]:
    """Return the parts of "0 done, 1 the job …": each begins with a number."""
    return [part.strip(" ,") for part in re.split(r"(?:^|, )(?=\d+ )", text) if part.strip()]
