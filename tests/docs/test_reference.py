"""The reference lists what the code has, all of it and nothing else."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import jupyter_dlaas
from dlaas_server.core.model.states import Event
from dlaas_server.pools.config import PoolConfig
from dlaas_server.rest.routes import ROUTES
from docs.generate import PARTS, commands, configuration, environment
from jupyter_dlaas.kernel import magics
from jupyter_dlaas.kernel.magics import VERBS
from jupyter_dlaas.runtime.spawn import launch
from jupyter_dlaas.wire.codec import schema
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import ERRORS, Cause, State
from tests.docs.blocks import DOCS, ROOT, pages

REFERENCE = DOCS / "reference"
VARIABLE = re.compile(r"""["']((?:JUPYTER_)?DLAAS_[A-Z_]+[A-Z])["']""")
SOURCES = [*(ROOT / "jupyter_dlaas").rglob("*.py"), *(ROOT / "server" / "dlaas_server").rglob("*.py")]


@functools.cache
def rendered(name: str) -> str:
    """Return a part of the reference."""
    return PARTS[name]()


def first_cells(markdown: str) -> list[str]:
    """Return the code in the first cell of each row of a part's tables."""
    return re.findall(r"^\| `+([^`]+)`+", markdown, re.MULTILINE)


def text_of(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def test_every_part_is_on_a_page() -> None:
    used = re.findall(r"```\{dlaas\} ([\w-]+)", "\n".join(path.read_text(encoding="utf-8") for path in pages()))

    assert sorted(used) == sorted(PARTS)


def test_every_key_of_the_configuration_is_listed_and_described() -> None:
    records: dict = {}
    schema(PoolConfig, records)
    tables = {
        "PoolConfig": {"pool", "retention", "nodes", "queues", "kubernetes"},
        "NodeEntry": {"devices"},
        "KubernetesSection": {"tolerations"},
    }
    expected = [
        key for name, record in records.items() for key in record["properties"] if key not in tables.get(name, ())
    ]

    assert sorted(first_cells(rendered("config"))) == sorted(expected)
    assert [f"{section} {key}" for section, key, text in configuration.described_keys() if not text] == []


def test_every_option_of_train_is_listed() -> None:
    listed = re.findall(r"`(-[\w-]+)", rendered("train-options"))
    shown = re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", commands.train_parser().format_help())

    assert set(listed) == set(shown) - {"-h", "--help"}


def test_every_option_of_train_is_an_option_of_submit() -> None:
    magic_only = {"push", "with_cell", "dry_run", "suggest", "wait"}
    options = {action.dest for action in commands.shown(commands.train_parser())} - magic_only

    assert options <= set(first_cells(rendered("submit-options")))


def test_every_verb_and_option_of_the_command_line_is_listed() -> None:
    said = rendered("command-line")
    parts = {part.split("`")[0]: part for part in said.split("\n## `")[1:]}

    assert set(parts) == set(commands.verbs())
    for verb, parser in commands.verbs().items():
        options = {name for action in parser._actions for name in action.option_strings}
        listed = set(re.findall(r"`(-[\w-]+)", parts[verb]))
        assert listed == options - {"-h", "--help", "--json", "--pool"}, verb


def test_every_verb_of_the_magic_is_listed() -> None:
    assert first_cells(rendered("magic-verbs")) == [f"%dlaas {verb}" for verb in VERBS]


def test_help_of_the_magic_describes_every_verb() -> None:
    text = magics.DlaasMagics.dlaas.__doc__ or ""

    assert [name for name in VERBS if f"  {name}" not in text or magics.SUMMARIES[name] not in text] == []


def test_every_public_name_is_listed() -> None:
    listed = re.findall(r"^\.\. auto\w+:: (\w+)", text_of("python.md") + text_of("learner.md"), re.MULTILINE)

    assert sorted(listed) == sorted(jupyter_dlaas.__all__)


def test_every_route_is_listed() -> None:
    listed = re.findall(r"^## `(\w+) (\S+)`", rendered("rest-routes"), re.MULTILINE)

    assert sorted(listed) == sorted({(route.method, route.path) for route in ROUTES})


def test_every_state_event_and_fact_is_listed() -> None:
    assert first_cells(rendered("states")) == list(State)
    assert first_cells(rendered("job-events")) == list(Event)
    assert first_cells(rendered("journal-facts")) == list(FactKind)


def failure_codes() -> Iterator[str]:
    """Yield the codes that the code gives to failures: in rows of the table, and where one is made."""
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if "Failure(" not in text and "Row(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Failure", "Row"):
                for keyword in node.keywords:
                    if keyword.arg == "code" and isinstance(keyword.value, ast.Constant) and keyword.value.value:
                        yield str(keyword.value.value)


def test_every_failure_code_is_listed() -> None:
    listed = re.findall(r"^### `(\w+)`", rendered("failures"), re.MULTILINE)

    assert set(listed) == set(failure_codes())
    assert first_cells(rendered("causes")) == list(Cause)


def test_every_api_error_is_listed() -> None:
    assert first_cells(rendered("api-errors")) == list(ERRORS)


def test_every_environment_variable_is_listed() -> None:
    tables = {**environment.USER, **environment.IN_JOBS, **environment.INTERNAL}
    named = set()
    for path in SOURCES:
        named |= set(VARIABLE.findall(path.read_text(encoding="utf-8")))

    assert named <= set(tables)
    assert {name for name in tables if "DLAAS_" in name} <= named


def test_variables_of_a_learner_are_listed() -> None:
    source = Path(launch.__file__).read_text(encoding="utf-8")

    assert [name for name in environment.IN_JOBS if name not in source and "DLAAS_" not in name] == []


@pytest.mark.parametrize("name", sorted(PARTS))
def test_parts_render_without_empty_cells_in_tables(name: str) -> None:
    text = rendered(name)

    assert text.strip()
    if name != "rest-records":
        assert [row for row in text.splitlines() if row.startswith("|") and re.search(r"\|\s+\|$", row)] == []
