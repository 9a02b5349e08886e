"""A pool is filled with pods that share GPUs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dlaas_server.core.model.resources import WHOLE
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.scheduling.scheduler import Policy
from dlaas_server.sim.__main__ import main
from dlaas_server.sim.experiments.fill_cluster import MARKS, Filled
from dlaas_server.sim.experiments.fragmentation import FULL, TRACES, filled_by, openb, published
from dlaas_server.sim.replay.event_loop import Unrunnable, replay
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.rules.fgd import FILLERS
from dlaas_server.sim.trace.formats import read_nodes, read_trace
from dlaas_server.sim.trace.trace import NodeSpec, Pod, Trace, TraceJob
from tests.selection import exhaustive
from tests.sim.builders import tjob, trace

POLICIES = [f"core:{layout}" for layout in Layout] + list(FILLERS)


def pods(*asked: int) -> Trace:
    """Pods by the thousandths of a GPU that they ask for; beyond one, whole GPUs."""
    jobs = tuple(
        TraceJob(
            id=f"p{i}",
            submit_s=0,
            duration_s=None,
            gpus_per_learner=max(milli // WHOLE, 1),
            work=Pod(gpu_milli=min(milli, WHOLE)),
        )
        for i, milli in enumerate(asked)
    )
    return Trace(name="pods", format="openb-pods", jobs=jobs)


def at(filled: tuple[Filled, ...], mark: int) -> Filled:
    return filled[MARKS.index(mark)]


@pytest.mark.parametrize("who", POLICIES)
def test_allocation_never_exceeds_requests_or_capacity(who: str) -> None:
    nodes = tuple(NodeSpec(name=f"n{i}", gpus=4) for i in range(5))

    for found in filled_by(pods(*[300] * 20, *[700] * 9, 1000, 2000, 4000), nodes, who, seed=1):
        asked_for_at_most = min(100.0, found.arrived + 100 * 4 / 20)
        assert 0 < found.allocated <= asked_for_at_most
        assert 0 <= found.fragmented <= 100 - found.allocated + 1e-9


@pytest.mark.parametrize("who", ["core:fgd", "core:pack", "fgd", "bestfit"])
def test_halves_fill_a_pool_to_the_last_gpu(who: str) -> None:
    assert at(filled_by(pods(500), (NodeSpec(name="n", gpus=4),), who, seed=0), 100) == Filled(100, 100, 0)


def test_capacity_too_small_for_all_is_fragmented() -> None:
    found = at(filled_by(pods(600), (NodeSpec(name="n", gpus=10),), "core:fgd", seed=0), 100)

    assert found.allocated == pytest.approx(60)
    assert found.fragmented == pytest.approx(40)


def test_the_same_seed_fills_alike() -> None:
    nodes = (NodeSpec(name="a", gpus=2), NodeSpec(name="b", gpus=4))
    asked = pods(200, 300, 500, 1000)

    assert filled_by(asked, nodes, "core:fgd", seed=3) == filled_by(asked, nodes, "core:fgd", seed=3)


def test_the_published_figures_stand_beside_every_mark() -> None:
    assert list(published("default", "06-FGD")) == list(MARKS)


@exhaustive
def test_core_fragments_less_than_packing_on_published_pods() -> None:
    asked, nodes = openb("default")
    gentle, packed = (at(filled_by(asked, nodes, who, seed=0), FULL) for who in ("core:fgd", "core:pack"))

    assert gentle.allocated > published("default", "05-BestFit")[FULL]
    assert packed.allocated > published("default", "05-BestFit")[FULL]
    assert gentle.allocated > packed.allocated + 1
    assert gentle.fragmented < packed.fragmented


def test_pods_of_several_learners_are_refused() -> None:
    with pytest.raises(Unrunnable, match="job a has 2 learners"):
        filled_by(trace(tjob("a", 0, 1, 60, learners=2)), (NodeSpec(name="n", gpus=4),), "fgd", seed=0)


def test_a_pool_without_gpus_is_refused() -> None:
    with pytest.raises(Unrunnable, match="nothing to fill"):
        filled_by(pods(500), (NodeSpec(name="n", gpus=0, cpus=4),), "core:pack", seed=0)


def test_command_fills_a_pool_by_rules_or_placement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pods.csv"
    path.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,64,1,500\n")

    for options in (["--rules", "fgd"], ["--placement", "pack"]):
        assert main([str(path), "--pool", "2x2", *options]) == 0
        assert "    100 %        100.00        0.00" in capsys.readouterr().out
    assert main([str(path), "--pool", "2x2", "--rules", "fgd", "--json"]) == 0
    assert '"allocated_pct": 100.0' in capsys.readouterr().out


def test_a_pool_that_is_filled_has_no_times_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pods.csv"
    path.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,64,1,500\n")

    assert main([str(path), "--rules", "fgd", "--jobs-csv", str(tmp_path / "out.csv")]) == 2
    assert "a pool that is filled takes no --jobs-csv: leave it out, or choose an --order" in capsys.readouterr().err


@pytest.mark.parametrize("order", ["fifo", "fifo-skip", "shortest", "las"])
@pytest.mark.parametrize("layout", [Layout.FGD, Layout.PACK, Layout.TOPOLOGY])
def test_pods_that_share_gpus_come_and_go_in_time(order: str, layout: Layout) -> None:
    nodes = (NodeSpec(name="a", gpus=2), NodeSpec(name="b", gpus=3))
    for seed in range(5):
        chance = random.Random(seed)
        jobs = tuple(
            TraceJob(
                id=f"p{i}",
                submit_s=i * 5,
                duration_s=chance.randint(1, 300),
                work=Pod(gpu_milli=chance.choice([100, 300, 500, 700, 1000])),
            )
            for i in range(60)
        )
        asked = Trace(name="pods", format="openb-pods-in-time", jobs=jobs)

        result = replay(asked, 5, ByCore(nodes, Policy(order=order), layout, restart_s=2), restart_s=2)

        worked = sum((job.duration_s or 0) * job.held_gpus for job in jobs)
        restarts = sum(2 * done.preemptions * done.job.held_gpus for done in result.done)
        assert len(result.done) == 60
        assert worked - 1e-6 <= result.busy_gpu_s <= worked + restarts + 1e-6


def test_pod_shorter_than_a_second_runs_for_one(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p,1000,64,1,500,T4,LS,Failed,7,9,9\n"
    )

    (pod,) = read_trace(path).jobs

    assert (pod.duration_s, pod.held_gpus) == (1, 0.5)


def test_the_nodes_kept_here_are_read_whole() -> None:
    nodes = read_nodes(TRACES / "openb_node_list_gpu_node.csv")

    assert (len(nodes), sum(node.gpus for node in nodes)) == (1213, 6212)
