"""A site per test; nothing of it is left afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.whole.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def build(slots: int = 2, nodes: int = 1) -> Site:
        made.append(Site(tmp_path / f"site-{len(made)}", slots, nodes))
        return made[-1]

    yield build
    for one in made:
        one.close()
