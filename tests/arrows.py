"""Kinds of import contracts for import-linter: what a package may import, no circles, and modules named in strings.

The contracts stand in `.importlinter`, one per package. Imports for type checking only, and those inside functions,
count like any other. A package is the modules directly in a folder; each folder below it is a package of its own, and
so is each module that stands directly in `jupyter_dlaas` or `dlaas_server`.
"""

from __future__ import annotations

import ast
import configparser
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

OURS = ("jupyter_dlaas", "dlaas_server")
ROOT = Path(__file__).parent.parent
FOLDERS = {"jupyter_dlaas": ROOT / "jupyter_dlaas", "dlaas_server": ROOT / "server" / "dlaas_server"}
Import = tuple[str, str]


def files() -> dict[str, Path]:
    """Map the name of each module to its file."""
    found = {}
    for root, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([root, *parts]).removesuffix(".__init__")] = path
    return found


def package_of(module: str, packages: Collection[str]) -> str:
    """Return the folder that a module lies in; a package's `__init__` lies in the package."""
    parent = module.rpartition(".")[0]
    return module if module in packages or parent in OURS else parent


def wrong_imports(
    package: str,
    allowed: Collection[str],
    libraries: Collection[str],
    imports: Iterable[Import],
    packages: Collection[str],
) -> list[str]:
    """Return the imports of a package that its contract does not allow."""
    wrong = []
    for importer, imported in sorted(imports):
        if package_of(importer, packages) != package:
            continue
        if imported.split(".")[0] in OURS:
            if package_of(imported, packages) not in {package, *allowed}:
                wrong.append(f"{importer} -> {imported}")
        elif imported not in sys.stdlib_module_names and imported not in libraries:
            wrong.append(f"{importer} -> {imported} (a library)")
    return wrong


def unused(
    package: str,
    allowed: Collection[str],
    libraries: Collection[str],
    imports: Iterable[Import],
    packages: Collection[str],
) -> list[str]:
    """Return what a contract allows and no module of the package imports."""
    used = {imported for importer, imported in imports if package_of(importer, packages) == package}
    used |= {package_of(imported, packages) for imported in used}
    return [f"{package} imports nothing of {name}" for name in (*allowed, *libraries) if name not in used]


def circle(arrows: Mapping[str, Collection[str]]) -> list[str]:
    """Return packages that import each other in a circle, the first one again at the end; [] where there is none."""
    done: set[str] = set()

    def walk(package: str, path: list[str]) -> list[str]:
        if package in path:
            return [*path[path.index(package) :], package]
        if package in done:
            return []
        for other in sorted(arrows.get(package, ())):
            if found := walk(other, [*path, package]):
                return found
        done.add(package)
        return []

    for package in sorted(arrows):
        if found := walk(package, []):
            return found
    return []


def named_modules(source: str, modules: Collection[str]) -> list[str]:
    """Return the modules of ours that a program names in strings, for `import_module` and its like."""
    constants = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return sorted({text for text in constants if isinstance(text, str) and "." in text and text in modules})


def imports_in(graph: ImportGraph) -> list[Import]:
    """Return all imports of our modules as pairs of importer and imported."""
    return [
        (importer, imported)
        for importer in graph.modules
        if importer.split(".")[0] in OURS
        for imported in graph.find_modules_directly_imported_by(importer)
    ]


def packages_in(graph: ImportGraph) -> set[str]:
    """Return the packages of ours: modules that others lie in, and those directly in a root."""
    ours = {module for module in graph.modules if module.split(".")[0] in OURS}
    parents = {module: module.rpartition(".")[0] for module in ours}
    return {parent for parent in parents.values() if parent} | {m for m in ours if parents[m] in OURS} | set(OURS)


class Listed(Contract):
    """A contract that is broken by the lines that `wrong` returns."""

    def wrong(self, graph: ImportGraph) -> list[str]:
        raise NotImplementedError

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        wrong = self.wrong(graph)
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["wrong"]:
            output.print_error(f"  {line}")


class PackageContract(Listed):
    """Imports of one package: these packages of ours, and these libraries beside the standard library."""

    type_name = "package"

    package = fields.StringField()
    may_import = fields.ListField(subfield=fields.StringField(), required=False)
    libraries = fields.ListField(subfield=fields.StringField(), required=False)

    def wrong(self, graph: ImportGraph) -> list[str]:
        package, allowed, libraries = str(self.package), _list(self.may_import), _list(self.libraries)
        given = (package, allowed, libraries, imports_in(graph), packages_in(graph))
        return [*wrong_imports(*given), *unused(*given)]


class CompleteContract(Listed):
    """Every package has a contract, and packages import each other in no circle."""

    type_name = "complete"

    def wrong(self, graph: ImportGraph) -> list[str]:
        packages = packages_in(graph)
        arrows: dict[str, set[str]] = {}
        for importer, imported in imports_in(graph):
            if imported.split(".")[0] in OURS:
                arrows.setdefault(package_of(importer, packages), set()).add(package_of(imported, packages))
        found = circle({package: others - {package} for package, others in arrows.items()})
        contracts = {options.get("package") for options in _contracts()}
        missing = [f"{package} has no contract in .importlinter" for package in sorted(packages - contracts)]
        return [*missing, *([" -> ".join(found)] if found else [])]


class NamedContract(Listed):
    """Modules of ours are named in strings only where this list says so: `module -> module`."""

    type_name = "named"

    allowed = fields.ListField(subfield=fields.StringField())

    def wrong(self, graph: ImportGraph) -> list[str]:
        modules = files()
        found = [
            f"{module} -> {name}"
            for module, path in sorted(modules.items())
            for name in named_modules(path.read_text(encoding="utf-8"), modules)
        ]
        allowed = _list(self.allowed)
        gone = [f"{line}: not there any more; take it off the list" for line in allowed if line not in found]
        return [line for line in found if line not in allowed] + gone


def _list(value: object) -> list[str]:
    return list(value) if isinstance(value, list) else []


def _contracts() -> list[dict[str, str]]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter", encoding="utf-8")
    return [dict(parser[section]) for section in parser.sections()]
