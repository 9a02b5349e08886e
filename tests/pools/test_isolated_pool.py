"""The pool of isolated learners keeps the contract: private directories, an address each, agents over links."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.isolated.pool import IsolatedPool, IsolatedRig, Machines
from tests.pools.contract import PoolContract

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[IsolatedRig]:
    folder = tmp_path / "pool"
    made = IsolatedRig(folder, IsolatedPool(folder, Machines(folder)))
    await made.open()
    yield made
    await made.pool.close()
    made.sweep()


class TestContract(PoolContract):
    """All promises, kept by real guardians, agents and learners."""
