"""Every page of the documentation that shows code runs, on a real pool, and prints what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, pages, runnable
from tests.docs.page_run import run_page
from tests.selection import exhaustive

QUICK = DOCS / "get-started" / "first-failure.md"
"""The page that `make test` runs; `make test-all` runs all."""

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=str(path.relative_to(ROOT)), marks=[] if path == QUICK else [exhaustive])
        for path in pages()
        if any(True for _ in runnable(path))
    ],
)
def test_page_runs_with_the_shown_output(path: Path, tmp_path: Path) -> None:
    run_page(path, tmp_path)
