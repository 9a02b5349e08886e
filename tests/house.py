"""House rules that no linter knows: short files, plain folder names, no address and no path of one machine.

`python tests/house.py` lists what breaks them. Reads what git tracks or would track.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LINES_MAX = 600
FILES_MAX = 18
"""Number of modules in one package."""
COUNTED = {".py", ".ts", ".tsx", ".css", ".md", ".toml", ".mjs"}
FOLDERS_REFUSED = {"utils", "util", "helpers", "misc", "common"}
REFUSED = {
    r"pypi\.org|pythonhosted\.org|--index-url|--extra-index-url|--find-links": "an index of packages",
    r"registry\.npmjs|registry\.yarnpkg|npmmirror": "a registry of packages",
    r"deb\.debian\.org|archive\.ubuntu": "a mirror of a distribution",
    r"(?<![\w.])/(work|root)/": "a path of one machine",
}


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


def complaints(root: Path) -> Iterator[str]:
    yield from crowded(root)
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
