"""A site per test; nothing of it is left afterwards, but the zygotes for the site of the next test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from jupyter_dlaas.runtime.zygote.start_guardian import stop_zygotes
from tests.runtime.test_zygote import is_running
from tests.whole.site import Site, standing, until


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of all sites, one after the other. A zygote is found by the path of its pool, so the next site has it."""
    folder = tmp_path_factory.mktemp("ground")
    yield folder
    pools = list(folder.glob("*/data/dlaas/local"))
    for pool in pools:
        stop_zygotes(pool / "zygotes")
    until(lambda: not any(is_running(lock) for pool in pools for lock in pool.glob("zygotes/*.lock")), "they are gone")


@pytest.fixture
def site(ground: Path, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    with ExitStack() as stack:
        numbers = count()

        def build(slots: int = 2, nodes: int = 1) -> Site:
            return stack.enter_context(standing(ground, f"site-{next(numbers)}", tmp_path, slots, nodes))

        yield build
