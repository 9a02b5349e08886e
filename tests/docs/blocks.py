"""Code blocks of the documentation.

| language | meaning |
|---|---|
| `ipython3` | a notebook cell |
| `python` | a file, if its first line is a comment with the file's name; otherwise a cell of plain Python |
| `shell` | commands in a terminal, in the notebook's folder |
| `toml` | a `config.toml` |
| `text` | the output of the block above; `…` stands for anything, and any number for any other |

A comment `<!-- not run: REASON -->` above a block says why it is not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["DOCS", "ROOT", "Block", "blocks", "is_output", "pages", "runnable"]

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
_FENCE: Final = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?(?P<fence>```+)(?P<language>[\w+-]+)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One code block. `line` is that of its first line of code; `output` is what its run must print, if shown."""

    path: Path
    line: int
    language: str
    text: str
    not_run: str = ""
    output: str | None = None

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that the block shows, if it shows one."""
        found = re.match(r"# ([\w./-]+\.py)\n", self.text) if self.language == "python" else None
        return found[1] if found else None


def pages() -> list[Path]:
    """Return the pages whose blocks are tested: the README and all pages of the site."""
    return [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)]


def blocks(path: Path) -> list[Block]:
    """Return the blocks of a page in order, each with the output that stands directly below it."""
    text = path.read_text(encoding="utf-8")
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        between, end = text[end : match.start()], match.end()
        if match["language"] == "text" and found and not between.strip() and found[-1].output is None:
            last = found.pop()
            found.append(Block(last.path, last.line, last.language, last.text, last.not_run, match["text"]))
            continue
        line = text.count("\n", 0, match.start("text")) + 1
        found.append(Block(path, line, match["language"], match["text"], match["reason"] or ""))
    return found


def is_output(shown: str, printed: str) -> bool:
    """Return whether a program printed what a page shows.

    White space counts as one blank, each number as any other, and milliseconds as seconds.
    """
    pattern = r".*".join(re.escape(part.strip()) for part in _plain(shown).split("…"))
    return re.fullmatch(pattern, _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    return re.sub(r"\b0 ms\b", "0 s", re.sub(r"\d+(\.\d+)?", "0", " ".join(text.split())))


def runnable(path: Path) -> Iterator[Block]:
    """Yield the blocks of a page that can be run."""
    yield from (
        block for block in blocks(path) if not block.not_run and block.language in ("ipython3", "python", "shell")
    )
