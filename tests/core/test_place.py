"""Gangs are seated whole or not at all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.model import Job, Node
from dlaas_server.core.place import free_of, place, room, shape_of
from jupyter_dlaas.protocol import Placement
from tests.core.builders import job, node, seats, training


def placed(target: Job, nodes: list[Node], *others: Job) -> list[str] | None:
    found = place(free_of(nodes, others), shape_of(target), target.spec.learners_min)
    return None if found is None else [seat.node for seat in found]


def test_a_gang_is_packed_onto_the_tightest_node_that_takes_it() -> None:
    nodes = [node("big", 8), node("small", 2), node("middle", 4)]

    assert placed(job(learners=(2, 2)), nodes) == ["small", "small"]


def test_a_gang_too_large_for_one_node_takes_the_emptiest_first() -> None:
    assert placed(job(learners=(5, 5)), [node("a", 2), node("b", 4)]) == ["b", "b", "b", "b", "a"]


def test_a_gang_is_spread_over_the_least_loaded_nodes() -> None:
    spread = job(learners=(3, 3), placement=Placement.SPREAD)

    assert placed(spread, [node("a", 4), node("b", 4)]) == ["a", "b", "a"]


def test_a_gang_that_does_not_fit_takes_nothing() -> None:
    frees = free_of([node("a", 3)], ())

    assert place(frees, shape_of(job()), 4) is None
    assert len(frees[0].devices) == 3


def test_cpus_and_memory_count_beside_devices() -> None:
    hungry = job(gpus=1, cpus=3, memory=2**30)
    frees = free_of([node("a", 4, cpus=8, memory=2**40), node("b", 4, cpus=8, memory=2**30)], ())

    assert room(frees, shape_of(hungry), 10) == 3  # two by its CPUs on a, one by its memory on b


def test_devices_out_of_service_and_cordoned_nodes_are_passed_over() -> None:
    broken = node("a", 1)
    broken = Node(name="a", devices=(type(broken.devices[0])(id="a/0", index=0, kind="GPU", out_of_service="Xid 79"),))
    kept = Node(name="c", devices=node("c", 1).devices, cordoned="maintenance")

    assert placed(job(), [broken, kept, node("b", 1)]) == ["b"]


def test_devices_of_running_jobs_are_not_given_again() -> None:
    running = training(job(learners=(2, 2)), *seats("a", 2))

    found = place(free_of([node("a", 4)], [running]), shape_of(job(2)), 2)

    assert found is not None
    assert [seat.devices for seat in found] == [("a/2",), ("a/3",)]


shapes = st.builds(
    job,
    learners=st.integers(1, 8).map(lambda n: (n, n)),
    gpus=st.integers(0, 3),
    cpus=st.sampled_from([0.0, 0.5, 2.0]),
    memory=st.sampled_from([0, 2**28]),
    placement=st.sampled_from(list(Placement)),
)
node_lists = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([0.0, 2.0, 7.5]), st.sampled_from([0, 2**29])), max_size=5
)


@given(shapes, node_lists)
def test_a_placement_is_whole_within_the_nodes_and_takes_each_device_once(
    target: Job, sizes: list[tuple[int, float, int]]
) -> None:
    nodes = [node(f"n{i}", d, cpus=c, memory=m) for i, (d, c, m) in enumerate(sizes)]
    before = room(free_of(nodes, ()), shape_of(target), 100)
    found = place(free_of(nodes, ()), shape_of(target), target.spec.learners_min)

    assert (found is not None) == (before >= target.spec.learners_min)
    if found is None:
        return
    taken = [d for seat in found for d in seat.devices]
    assert len(taken) == len(set(taken)) == target.spec.learners_min * target.spec.gpus_per_learner
    assert len(found) == target.spec.learners_min
    for one in nodes:
        here = [seat for seat in found if seat.node == one.name]
        assert {d for seat in here for d in seat.devices} <= {d.id for d in one.devices}
        assert len(here) * target.spec.cpus_per_learner <= one.cpus + 1e-9 or not target.spec.cpus_per_learner
        assert (
            len(here) * target.spec.memory_bytes_per_learner <= one.memory_bytes
            or not target.spec.memory_bytes_per_learner
        )
