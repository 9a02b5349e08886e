"""House rules beyond linters: short files, plain folder names, plain language, no addresses, no paths of one machine.

`python tests/house.py` lists the violations. It reads the files that git tracks or would track.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LINES_MAX = 600
FILES_MAX = 18
"""Number of modules in one package."""
COUNTED = {".py", ".ts", ".tsx", ".css", ".md", ".toml", ".mjs"}
TEST_NAME_WORDS_MAX = 10
FOLDERS_REFUSED = {"utils", "util", "helpers", "misc", "common"}
REFUSED = {
    r"pypi\.org|pythonhosted\.org|--index-url|--extra-index-url|--find-links": "an index of packages",
    r"registry\.npmjs|registry\.yarnpkg|npmmirror": "a registry of packages",
    r"deb\.debian\.org|archive\.ubuntu": "a mirror of a distribution",
    r"(?<![\w.])/(work|root)/": "a path of one machine",
}

PLAIN_LANGUAGE = (
    "jupyter_dlaas/analysis",
    "jupyter_dlaas/analysis/syntax",
    "jupyter_dlaas/api",
    "jupyter_dlaas/capture",
    "jupyter_dlaas/cli",
    "jupyter_dlaas/client",
    "jupyter_dlaas/display",
    "jupyter_dlaas/failures",
    "jupyter_dlaas/jobdir",
    "jupyter_dlaas/kernel",
    "jupyter_dlaas/learner",
    "jupyter_dlaas/objects",
    "jupyter_dlaas/runtime",
    "jupyter_dlaas/stored.py",
    "jupyter_dlaas/suggest",
    "jupyter_dlaas/transfer",
    "jupyter_dlaas/wire",
    "server/dlaas_server/core",
    "server/dlaas_server/engine",
    "server/dlaas_server/jupyter_extension",
    "server/dlaas_server/pools",
    "server/dlaas_server/rest",
    "server/dlaas_server/sim",
    "server/dlaas_server/store",
    "tests",
)
"""Packages and modules whose language is checked. Add each one when it is clean."""
QUOTING = frozenset({"tests/house.py", "tests/test_house.py"})
"""Modules that quote the private words."""
PRIVATE_WORDS = {
    "afresh": "again",
    "anew": "again",
    "crowd": "queue",
    "door": "endpoint",
    "doors": "endpoints",
    "farewell": "graceful shutdown",
    "forgotten": "starvation guard",
    "keeper": "watchdog",
    "lonely": "single learner",
    "meeting": "rendezvous",
    "nobody": "the role that is meant",
    "somebody": "the role that is meant",
    "tells": "report, announce",
    "told": "report, announce",
    "whys": "reasons",
}
"""Words for which the field has a term; refused in identifiers, strings and comments."""
PUBLIC_NAMES = {"random_anew"}
"""Public names from before these rules, which programs of stored jobs call."""
PRIVATE_PHRASES = {
    r"\b(goes|go|went) on\b": "continue",
    r"\b(is|are) no (?!longer|more)[a-z]+ (name|number|file|text|JSON)": "not a valid ...",
    r"\bask again\b": "retry",
    r"\b(takes?|goes|comes?) along\b": "include, send",
    r"\bfor want of\b": "because ... ran out",
    r"\bwho waits\b": "waiting jobs",
}
FIRST_WORDS_REFUSED = {"how", "if", "what", "when", "where", "whether", "which", "who", "why"}
"""Words that begin no docstring: functions start with an imperative verb, classes and modules with a noun."""


def files(root: Path) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return sorted({root / name for name in listed.split("\0") if name and (root / name).is_file()})


def crowded(root: Path) -> Iterator[str]:
    """Name the packages of the product that hold too many modules."""
    product = [path.parent for path in files(root) if path.suffix == ".py" and path.parts[len(root.parts)] != "tests"]
    for folder, count in sorted(Counter(product).items()):
        if count > FILES_MAX:
            yield f"{folder.relative_to(root)}: {count} modules; {FILES_MAX} are the limit: split it by concern"


def language_faults(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and fault of private words and of docstrings that begin with a question word.

    Names on the wire, `metadata=wire("…")`, stay as earlier releases wrote them.
    """
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and token.string not in PUBLIC_NAMES:
            parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", token.string)
            for word in sorted(PRIVATE_WORDS.keys() & {part.lower() for part in parts}):
                yield token.start[0], f"the name {token.string} has the private word '{word}' ({PRIVATE_WORDS[word]})"
        elif token.type in (tokenize.COMMENT, tokenize.STRING) and "metadata=wire(" not in token.line:
            for number, line in enumerate(token.string.split("\n"), token.start[0]):
                for word in sorted(PRIVATE_WORDS.keys() & set(re.findall(r"\b[a-z]+\b", line.lower()))):
                    yield number, f"the private word '{word}' ({PRIVATE_WORDS[word]})"
                for phrase, term in PRIVATE_PHRASES.items():
                    if match := re.search(phrase, line):
                        yield number, f"the private phrase '{match[0]}' ({term})"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = re.match(r"\W*(\w+)", ast.get_docstring(node) or "")
            if first is not None and first[1].lower() in FIRST_WORDS_REFUSED:
                yield getattr(node, "lineno", 1), f"a docstring that begins with '{first[1]}'"


def unplain(root: Path) -> Iterator[str]:
    """Name private language in the checked packages, and docstrings of functions without an imperative verb."""
    for path in files(root):
        name = path.relative_to(root).as_posix()
        is_checked = any(name == part or name.startswith(f"{part}/") for part in PLAIN_LANGUAGE)
        if path.suffix == ".py" and is_checked and name not in QUOTING:
            for number, fault in sorted(language_faults(path.read_text(encoding="utf-8"))):
                yield f"{name}:{number}: {fault}"
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--quiet", "--output-format", "concise"]
    command = [*ruff, "--select", "D401,D404", *PLAIN_LANGUAGE]
    yield from subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.splitlines()


def long_names(text: str) -> Iterator[str]:
    """Yield the names of tests that are too long to search for."""
    for name in re.findall(r"^ *(?:async )?def test_(\w+)", text, re.M):
        if len(name.split("_")) > TEST_NAME_WORDS_MAX:
            yield f"test_{name}"


def long_test_names(root: Path) -> Iterator[str]:
    """Name the tests with too many words in their names."""
    for path in files(root):
        name = path.relative_to(root)
        if path.suffix == ".py" and name.parts[0] == "tests":
            for test in long_names(path.read_text(encoding="utf-8")):
                yield f"{name}: {test} has more than {TEST_NAME_WORDS_MAX} words"


def complaints(root: Path) -> Iterator[str]:
    yield from crowded(root)
    yield from unplain(root)
    yield from long_test_names(root)
    for path in files(root):
        name = path.relative_to(root)
        for folder in FOLDERS_REFUSED.intersection(name.parts[:-1]):
            yield f"{name}: a folder named {folder} says nothing about what is in it"
        if path.samefile(__file__):
            continue  # it names what it refuses
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        lines = text.splitlines()
        if path.suffix in COUNTED and len(lines) > LINES_MAX:
            yield f"{name}: {len(lines)} lines; {LINES_MAX} are the limit: split it where it says two things"
        for number, line in enumerate(lines, 1):
            for pattern, what in REFUSED.items():
                if re.search(pattern, line):
                    yield f"{name}:{number}: names {what}"


def main() -> int:
    found = list(complaints(Path(__file__).parent.parent))
    print("\n".join(found) or "House rules hold.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
