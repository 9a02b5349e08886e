"""Placement of gangs: whole or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.model.cluster import Device, Node, Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.resources import Loan, Shape, is_kind
from dlaas_server.core.placement.feasibility import why_never
from dlaas_server.core.placement.gang_placement import fit_count, free_of, place, shape_of
from dlaas_server.core.placement.shape import Layout
from jupyter_dlaas.wire.protocol import Placement
from tests.core.builders import job, node, seats, training


def placed(target: Job, nodes: list[Node], *others: Job) -> list[str] | None:
    found = place(free_of(nodes, others), shape_of(target), target.spec.learners_min)
    return None if found is None else [seat.node for seat in found]


def test_gang_is_packed_onto_the_tightest_fitting_node() -> None:
    nodes = [node("big", 8), node("small", 2), node("middle", 4)]

    assert placed(job(learners=(2, 2)), nodes) == ["small", "small"]


def test_learners_on_one_node_have_separate_devices() -> None:
    found = place(free_of([node("a", 4)], ()), shape_of(job(gpus=2)), 2)

    assert found == (Seat("a", ("a/0", "a/1")), Seat("a", ("a/2", "a/3")))


def test_large_gang_takes_the_emptiest_nodes_first() -> None:
    assert placed(job(learners=(5, 5)), [node("a", 2), node("b", 4)]) == ["b", "b", "b", "b", "a"]


def test_a_gang_is_spread_over_the_least_loaded_nodes() -> None:
    spread = job(learners=(3, 3), placement=Placement.SPREAD)

    assert placed(spread, [node("a", 4), node("b", 4)]) == ["a", "b", "a"]


def test_a_gang_that_does_not_fit_takes_nothing() -> None:
    capacity = free_of([node("a", 3)], ())

    assert place(capacity, shape_of(job()), 4) is None
    assert len(capacity[0].devices) == 3


def test_cpus_and_memory_count_beside_devices() -> None:
    hungry = job(gpus=1, cpus=3, memory=2**30)
    capacity = free_of([node("a", 4, cpus=8, memory=2**40), node("b", 4, cpus=8, memory=2**30)], ())

    assert fit_count(capacity, shape_of(hungry), 10) == 3  # two by its CPUs on a, one by its memory on b


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
def test_placement_is_atomic_and_devices_are_exclusive(target: Job, sizes: list[tuple[int, float, int]]) -> None:
    nodes = [node(f"n{i}", d, cpus=c, memory=m) for i, (d, c, m) in enumerate(sizes)]
    before = fit_count(free_of(nodes, ()), shape_of(target), 100)
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


def kinds_of(nodes: list[Node], found: tuple[Seat, ...]) -> set[str]:
    kinds = {d.id: d.kind for one in nodes for d in one.devices}
    return {kinds[d] for seat in found for d in seat.devices}


MIXED = [node("a", 4, kind="NVIDIA A100-SXM4-40GB"), node("b", 2, kind="Tesla T4"), node("c", 4, kind="Tesla T4")]
ONE = Shape(1, 0.0, 0, None, Layout.PACK)


def test_a_job_that_asks_for_a_kind_gets_that_kind() -> None:
    found = place(free_of(MIXED, ()), replace(ONE, gpu_kind="a100"), 3)

    assert [seat.node for seat in found or ()] == ["a", "a", "a"]
    assert place(free_of(MIXED, ()), replace(ONE, gpu_kind="a100"), 5) is None
    assert place(free_of(MIXED, ()), replace(ONE, gpu_kind="H100|T4"), 6) is not None


def test_gang_without_a_kind_gets_one_kind_if_it_suffices() -> None:
    found = place(free_of(MIXED, ()), ONE, 6)

    assert kinds_of(MIXED, found or ()) == {"Tesla T4"}
    assert len(place(free_of(MIXED, ()), ONE, 10) or ()) == 10


def test_kinds_may_be_mixed_on_one_node() -> None:
    devices = (Device(id="a/0", index=0, kind="T4"), Device(id="a/1", index=1, kind="A100"))
    nodes = [Node(name="a", devices=devices)]

    found = place(free_of(nodes, ()), replace(ONE, gpu_kind="A100"), 1)

    assert [seat.devices for seat in found or ()] == [("a/1",)]


any_pool = st.lists(
    st.tuples(st.lists(st.sampled_from(["A100", "H100", "T4"]), max_size=5), st.sampled_from([4.0, 64.0])), max_size=5
)
any_shape = st.builds(
    lambda gpus, cpus, kind, layout: Shape(gpus, cpus, 0, kind, layout),
    st.integers(1, 3),
    st.sampled_from([0.0, 1.5]),
    st.sampled_from([None, "A100", "h100|a100", "V100"]),
    st.sampled_from(list(Layout)),
)


@given(any_pool, any_shape, st.integers(1, 6))
def test_every_layout_places_whole_gangs_of_the_right_kind(
    pool: list[tuple[list[str], float]], shape: Shape, learners: int
) -> None:
    nodes = [
        Node(
            name=f"n{i}",
            cpus=cpus,
            devices=tuple(Device(id=f"n{i}/{j}", index=j, kind=kind) for j, kind in enumerate(kinds)),
        )
        for i, (kinds, cpus) in enumerate(pool)
    ]
    capacity = free_of(nodes, ())
    fits = fit_count(capacity, shape, learners)
    before = capacity.devices

    found = place(capacity, shape, learners)

    assert (found is not None) == (fits == learners)
    assert (why_never(nodes, shape, learners, "GPU") is None) == (fits == learners)  # the pool is otherwise empty
    if found is None:
        assert capacity.devices == before
        return
    taken = [d for seat in found for d in seat.devices]
    assert len(taken) == len(set(taken)) == learners * shape.gpus
    got = kinds_of(nodes, found)
    assert all(shape.gpu_kind is None or is_kind(kind, shape.gpu_kind) for kind in got)
    if shape.gpu_kind is None and learners > 1:
        suffices = [
            k
            for k in ("A100", "H100", "T4")
            if fit_count(free_of(nodes, ()), replace(shape, gpu_kind=k), learners) == learners
        ]
        assert len(got) == 1 or not suffices


@pytest.mark.parametrize(
    ("kind", "learners", "said"),
    [
        (
            "V100",
            1,
            "requests the kind 'V100', but the pool has NVIDIA A100-SXM4-40GB (4), Tesla T4 (6). Choose one of these",
        ),
        (
            "A100",
            5,
            "requests 5 GPUs of the kind 'A100', but the pool has 4 and 6 of other kinds. Request at most 4, or omit",
        ),
        ("A100", 11, "requests 11 GPUs, but the pool has only 10"),
    ],
)
def test_infeasible_request_is_refused_with_the_reason(kind: str, learners: int, said: str) -> None:
    assert (why_never(MIXED, replace(ONE, gpu_kind=kind), learners, "GPU") or "").startswith(said)


def test_kind_out_of_service_or_cordoned_is_not_refused() -> None:
    broken = replace(MIXED[0], devices=tuple(replace(d, out_of_service="Xid 79") for d in MIXED[0].devices))

    for nodes in ([broken], [replace(MIXED[0], cordoned="maintenance")]):
        assert why_never(nodes, replace(ONE, gpu_kind="A100"), 4, "GPU") is None


def test_device_whose_cpus_another_job_takes_stays_lent() -> None:
    """4 of the 6 CPUs that the loan frees are promised to another job. Its device is still in use."""
    capacity = free_of([node("n1", 1, cpus=8.0), node("n2", 2)], ())
    capacity.lent = [Loan("job-1", "default", Shape(1, 6.0, 0, None, Layout.PACK), seats("n1", 1))]
    capacity.claim(Shape(0, 4.0, 0, None, Layout.PACK), (Seat("n1"),))

    assert place(capacity, Shape(1, 0.0, 0, None, Layout.PACK), 1) == (Seat("n2", ("n2/0",)),)
