"""The contract behind `arrows` in pyproject.toml: each part of the house says whom it may import, and nobody else.

A list of what is allowed, not of what is forbidden: a new module without an entry fails the check, so that it gets its
place on purpose. import-linter reads the imports; this says which of them are wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

OURS = ("jupyter_dlaas", "dlaas_server")


@dataclass(frozen=True, slots=True)
class Arrow:
    part: str
    ours: tuple[str, ...]
    others: tuple[str, ...]


def full_name(name: str) -> str:
    """Parts of `jupyter_dlaas` go by their short name: everybody may need one of them."""
    return name if name.split(".")[0] in OURS else f"jupyter_dlaas.{name}"


def parse(line: str) -> Arrow:
    """`part: ours, ours | others, others`."""
    part, _, allowed = line.partition(":")
    ours, _, others = allowed.partition("|")
    return Arrow(part.strip(), tuple(full_name(name) for name in words(ours)), tuple(words(others)))


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def home(module: str, parts: Iterable[str]) -> str | None:
    """The part that a module belongs to: the longest entry it is or lies in. A root package holds only itself."""
    holders = [part for part in parts if module == part or (part not in OURS and module.startswith(f"{part}."))]
    return max(holders, key=len, default=None)


def wrong_imports(lines: Sequence[str], imports: Iterable[tuple[str, str]]) -> list[str]:
    """Which of the (importer, imported) pairs no arrow allows, in words."""
    arrows = {arrow.part: arrow for arrow in map(parse, lines)}
    wrong = []
    for importer, imported in sorted(imports):
        part = home(importer, arrows)
        if part is None:
            wrong.append(f"{importer} has no place in the house: give it an entry in pyproject.toml, arrows")
        elif imported.split(".")[0] in OURS:
            theirs = home(imported, arrows)
            if theirs != part and not any(is_within(imported, allowed, theirs) for allowed in arrows[part].ours):
                wrong.append(f"{importer} -> {imported}")
        elif imported not in sys.stdlib_module_names and imported not in arrows[part].others:
            wrong.append(f"{importer} -> {imported} (not one of ours)")
    return list(dict.fromkeys(wrong))


def is_within(imported: str, allowed: str, theirs: str | None) -> bool:
    return imported == allowed or (allowed not in OURS and (theirs == allowed or imported.startswith(f"{allowed}.")))


class ArrowsContract(Contract):
    type_name = "arrows"

    arrows = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        imports = [
            (importer, imported)
            for importer in graph.modules
            if importer.split(".")[0] in OURS
            for imported in graph.find_modules_directly_imported_by(importer)
        ]
        lines: list[str] = self.arrows  # type: ignore[assignment]
        wrong = wrong_imports(lines, imports)
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["wrong"]:
            output.print_error(f"  {line}")
