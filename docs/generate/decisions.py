"""List of decisions, from their index in the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["listed"]

_INDEX: Final = Path(__file__).parents[2] / "server" / "decisions" / "README.md"


def listed() -> str:
    """Render the index of decisions, with links that download them."""
    text = _INDEX.read_text(encoding="utf-8").partition("\n## ")[2]
    text = re.sub(r"\[(\d+)\]\(([\w.-]+\.md)\)", r"{download}`\1 <../server/decisions/\2>`", "## " + text)
    return re.sub(r"^## ", "### ", text, flags=re.MULTILINE)
