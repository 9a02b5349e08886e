"""The documents for developers: packages, links, words and the state diagram agree with the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.state_diagram import PATH, document

ROOT = Path(__file__).parent.parent
SERVER = ROOT / "server"
ARCHITECTURE = SERVER / "ARCHITECTURE.md"
DECISIONS = SERVER / "decisions"
LINES_MAX = 150
INVARIANTS = 7
STATUS = re.compile(r"- Status: (accepted|superseded by \d{4}|accepted, amended by \d{4}( and \d{4})?)\n")


def section(heading: str) -> str:
    """Return the text below a heading of the map."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def packages() -> Iterator[str]:
    """Yield the dotted names of both import packages and all packages below them."""
    for root in (ROOT / "jupyter_dlaas", SERVER / "dlaas_server"):
        for path in sorted(root.rglob("__init__.py")):
            yield ".".join(path.parent.relative_to(root.parent).parts)


def documents() -> list[Path]:
    """Return the documents whose links are checked."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ARCHITECTURE, PATH, *sorted(DECISIONS.glob("*.md"))]


def words_of_the_code() -> str:
    """Return paths and text of the product in lower case, with identifiers taken apart into words."""
    pieces = []
    for folder, suffixes in (("jupyter_dlaas", {".py"}), ("server", {".py"}), ("labextension/src", {".ts", ".tsx"})):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes:
                pieces += [str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")]
    return "\n".join(pieces).lower().replace("_", " ").replace("-", " ")


def test_the_map_lists_every_package_once() -> None:
    assert sorted(re.findall(r"^\| `([\w.]+)` \|", section("Packages"), re.M)) == sorted(packages())


def test_the_map_is_short_and_has_its_invariants() -> None:
    assert len(ARCHITECTURE.read_text(encoding="utf-8").splitlines()) <= LINES_MAX
    assert len(re.findall(r"^\d\. ", section("Seven invariants"), re.M)) == INVARIANTS


def test_links_lead_to_files() -> None:
    broken = []
    for path in documents():
        links = re.findall(r"\]\(([^)#\s]+)\)", path.read_text(encoding="utf-8"))
        own = [link for link in links if "://" not in link]
        broken += [f"{path.name}: {link}" for link in own if not (path.parent / link).exists()]
    assert broken == []


def test_file_paths_of_the_decisions_exist() -> None:
    """Paths in a decision are relative to one of the import packages, to one below, or to the repository."""
    roots = [ROOT, SERVER, ROOT / "jupyter_dlaas", SERVER / "dlaas_server", ROOT / "jupyter_dlaas" / "learner"]
    missing = []
    for path in sorted(DECISIONS.glob("[0-9]*.md")):
        names = re.findall(r"`([\w/]+/[\w.]+\.(?:py|ts|tsx))`", path.read_text(encoding="utf-8"))
        missing += [f"{path.name}: {name}" for name in names if not any((root / name).exists() for root in roots)]
    assert missing == []


def test_words_of_the_glossary_occur_in_the_code() -> None:
    terms = [term.replace("-", " ") for term in re.findall(r"\*\*(.+?)\*\*", section("Glossary"))]
    code = words_of_the_code()
    assert len(terms) > 20
    assert [term for term in terms if term not in code] == []


def test_decisions_are_numbered_without_a_gap_and_say_their_status() -> None:
    paths = sorted(DECISIONS.glob("[0-9]*.md"))
    assert [int(path.name[:4]) for path in paths] == list(range(1, len(paths) + 1))
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {path.name[:4]}. "), path.name
        assert re.search(r"\n- Date: \d{4}-\d\d-\d\d\n", text), path.name
        assert STATUS.search(text), path.name
        assert "\n## Decision\n" in text, path.name


def test_the_index_lists_every_decision_once() -> None:
    listed = re.findall(r"^- \[\d{4}\]\((.+?)\)", (DECISIONS / "README.md").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(path.name for path in DECISIONS.glob("[0-9]*.md"))


def test_the_state_diagram_equals_the_table() -> None:
    assert PATH.read_text(encoding="utf-8") == document()
