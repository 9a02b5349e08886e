"""The pool on a cluster keeps the contract of all pools: real guardians, and learners in pods on process nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import Namespace
from tests.kubernetes.contract_rig import KubernetesRig, cluster_rig
from tests.pools.contract import PoolContract

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]


@pytest.fixture
async def rig(tmp_path: Path, own_cluster: OwnCluster, namespace: Namespace) -> AsyncIterator[KubernetesRig]:
    made = cluster_rig(tmp_path, own_cluster, namespace)
    await made.open()
    yield made
    await made.pool.close()
    made.close()


class TestContract(PoolContract):
    """All promises, kept by pods."""
