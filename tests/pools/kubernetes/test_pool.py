"""The Kubernetes pool without a cluster: what a pod gets of a job, and what is said while the cluster is away."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlaas_server.engine.admission import check_feasible_on
from dlaas_server.engine.service import configured_pool
from dlaas_server.pools.base import PoolUnavailable
from dlaas_server.pools.config import ConfigError, PoolConfig, load_config
from dlaas_server.pools.kubernetes.capacity import namespace_node
from dlaas_server.pools.kubernetes.manifests.pod_environment import pod_environment
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from dlaas_server.pools.kubernetes.pool import KubernetesPool, _free_port, _ports
from jupyter_dlaas.wire.journal import FactKind, Goal, Wanted
from jupyter_dlaas.wire.protocol import JobSpec, NotFound, Refused
from tests.core.builders import job

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_a_pod_gets_named_variables_and_settings_of_frameworks() -> None:
    here = {"PATH": "/usr/bin", "HOME": "/home/ana", "LD_PRELOAD": "x.so", "CONDA_PREFIX": "/opt", "PYTHONPATH": "/lib"}
    paths = {"HF_HOME": "/home/ana/.cache", "TORCH_HOME": "/home/ana/torch", "WANDB_DIR": "/home/ana"}
    others = {"AWS_SECRET_ACCESS_KEY": "s", "CUDA_VISIBLE_DEVICES": "", "KUBERNETES_PORT": "1", "OTHER": "x"}
    job = {
        "BATCH": "32",
        "DATA_DIR": "/mnt/data",
        "WANDB_PROJECT": "digits",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "2",
    }
    secret = {"DLAAS_SECRETS": "TOKEN", "TOKEN": "t"}

    kept = pod_environment({**here, **paths, **others, **job, **secret}, ("BATCH", "DATA_DIR"))
    left_out = ",".join(sorted({**here, **paths, **others}))
    assert kept == {**job, **secret, "DLAAS_LEFT_OUT": left_out}


async def test_a_cluster_that_is_away_is_named(tmp_path: Path) -> None:
    importlib.import_module("kubernetes.client")  # may take longer than the pool waits for its first attempt
    kubeconfig = tmp_path / "missing-kubeconfig"
    pool = KubernetesPool(tmp_path / "pool", KubernetesSection(kubeconfig=str(kubeconfig)), config=PoolConfig())
    await pool.open(lambda job, stream: None, lambda: None)
    try:
        assert str(kubeconfig) in (pool.unavailable() or "")
        assert pool.nodes() == ()
        with pytest.raises(PoolUnavailable, match="missing-kubeconfig"):
            await pool.create("digits-1", "me", JobSpec(), {})
        with pytest.raises(PoolUnavailable, match="missing-kubeconfig"):
            await pool.act("digits-1", Wanted(revision=1, goal=Goal.RUN, generation=1))
        assert await pool.is_guarded("digits-1") is None
        assert await pool.end("digits-1", kill=False) is False
        with pytest.raises(NotFound):
            await pool.facts("digits-2", 0)
    finally:
        await pool.close()


def test_a_section_of_the_configuration_moves_jobs_to_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[kubernetes]\nnamespace = "ml"\n[[kubernetes.tolerations]]\nkey = "gpu"\n')
    config = load_config(tmp_path)

    assert isinstance(configured_pool(tmp_path, config, lambda uptime_s: uptime_s), KubernetesPool)
    assert config.kubernetes is not None
    assert (config.kubernetes.namespace, config.kubernetes.tolerations[0].key) == ("ml", "gpu")
    (tmp_path / "config.toml").write_text('[kubernetes]\nnamespace = "M L"\n')
    with pytest.raises(ConfigError, match=r"kubernetes\.namespace.*not a valid namespace"):
        load_config(tmp_path)


def test_jobs_of_a_pool_have_ports_of_their_own(tmp_path: Path) -> None:
    ports = set[int]()
    for n in range(20):
        port = _free_port("127.0.0.1", _ports(tmp_path))
        (tmp_path / f"a-{n}").mkdir()
        (tmp_path / f"a-{n}" / "agents.json").write_text(json.dumps({"listen": f"127.0.0.1:{port}"}))
        ports.add(port)

    assert ports == _ports(tmp_path)
    assert len(ports) == 20


async def test_pods_count_as_leaving_before_the_closing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = KubernetesPool(tmp_path, KubernetesSection(), config=PoolConfig())
    facts = [SimpleNamespace(kind=FactKind.COMPLETED), SimpleNamespace(kind=FactKind.CLOSED)]
    noted: list[str] = []

    async def read(_: str, offset: int) -> tuple[list[SimpleNamespace], int]:
        return facts[offset : offset + 1], offset + 1

    monkeypatch.setattr(pool, "_local", SimpleNamespace(facts=read))
    monkeypatch.setattr(pool, "_gangs", SimpleNamespace(note_closed=noted.append))
    await pool.facts("a-1", 0)
    assert noted == []
    await pool.facts("a-1", 1)
    assert noted == ["a-1"]


def test_refusal_in_a_namespace_without_quota_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = KubernetesSection(namespace="ml")
    pool = KubernetesPool(tmp_path, settings, config=PoolConfig())
    assert pool.no_devices() is None, "nothing is known yet"
    monkeypatch.setattr(pool._picture, "_has_capacity", True)
    monkeypatch.setattr(pool._picture, "_nodes", (namespace_node([], [], settings),))

    with pytest.raises(Refused) as refused:
        check_feasible_on(pool, job(gpus=2))

    assert str(refused.value) == (
        f"the job requests 2 devices, but the pool has none. {pool.no_devices()} Jobs with --gpus 0 can run"
    )
    assert (pool.no_devices() or "").startswith("Namespace ml has no quota for nvidia.com/gpu or CPUs, ")
    check_feasible_on(pool, job(gpus=0))
