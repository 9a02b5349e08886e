"""Suspect devices: after a failure they get no learners for a while; after repeated failures they are cordoned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dlaas_server.core.lifecycle.job_events import MovedFromSuspect, apply_event
from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.job import Job
from dlaas_server.core.planning.pool_settings import Cordon, Settings, nodes_in_force
from dlaas_server.core.planning.suspect_devices import (
    SUSPECT_S,
    WINDOW_S,
    Suspect,
    cleared,
    expiry_s,
    node_without_seats,
    out_of_service,
    restarts_on_suspect,
    struck,
    trusted_again,
)
from dlaas_server.core.presentation.job_view import job_view
from jupyter_dlaas.wire.journal import FactKind, Goal
from jupyter_dlaas.wire.protocol import Cause, Failure, State
from tests.core.builders import fact, job, node, seats, training, with_fact

LOST_GPU = Failure(cause=Cause.HARDWARE, code="gpu_lost", what="GPU is lost", advice="The GPU failed.")
KILLED = Failure(cause=Cause.EVICTED, code="killed", what="killed from outside (SIGKILL)", advice="")
HUNG = Failure(cause=Cause.HANG, code="hang", what="hung in line 3", advice="")
FULL = Failure(cause=Cause.RESOURCES, code="host_memory", what="the memory was full", advice="")
BUG = Failure(cause=Cause.YOUR_CODE, code="your_code", what="ValueError", advice="")
NODES = (node("n1", 2), node("n2", 1))


def fails(
    suspects: Mapping[str, Suspect],
    failure: Failure = LOST_GPU,
    now_s: float = 100.0,
    nodes: tuple[Node, ...] = NODES,
    one: Job | None = None,
) -> tuple[Mapping[str, Suspect], str]:
    one = training(job(), *seats("n1", 1)) if one is None else one
    down = fact(one, FactKind.LEARNER_DOWN, member=one.gang[0].member, failure=failure)
    return struck(suspects, one, down, nodes, now_s)


def usable(suspects: Mapping[str, Suspect]) -> list[str]:
    return [
        d.id for n in out_of_service(NODES, suspects) if n.cordoned is None for d in n.devices if not d.out_of_service
    ]


def test_a_failed_device_takes_no_learners_for_a_while() -> None:
    suspects, text = fails({})

    assert usable(suspects) == ["n1/1", "n2/0"]
    assert text == "A device of n1 takes no new learners for 10 min: suspect after a failure: GPU is lost (job-1)."
    assert expiry_s(suspects) == 100.0 + SUSPECT_S
    assert usable(trusted_again(suspects, 99.0 + SUSPECT_S)) == ["n1/1", "n2/0"]
    assert usable(trusted_again(suspects, 100.0 + SUSPECT_S)) == ["n1/0", "n1/1", "n2/0"]
    assert not trusted_again(suspects, 100.0 + WINDOW_S)


def test_repeatedly_failing_device_is_cordoned_until_uncordoned() -> None:
    suspects: Mapping[str, Suspect] = {}
    text = ""
    for number in range(3):
        suspects = trusted_again(suspects, 100.0 + number * SUSPECT_S)
        suspects, text = fails(suspects, now_s=100.0 + number * SUSPECT_S)

    assert "takes no new learners until it is uncordoned: failed 3 times in an hour: GPU is lost" in text
    assert usable(trusted_again(suspects, 1e9)) == ["n1/1", "n2/0"]
    settings = Settings(suspects=suspects, cordons={"n2": Cordon(by="ana", at_s=1.0)})
    again = settings.without_cordon("n1")
    assert (again.suspects, list(again.cordons)) == ({}, ["n2"])
    assert nodes_in_force(NODES, again)[0] == NODES[0]


def test_a_failure_of_the_program_makes_nothing_suspect() -> None:
    assert fails({}, BUG) == ({}, "")


def test_a_disk_failure_makes_the_node_suspect() -> None:
    broken = Failure(cause=Cause.HARDWARE, code="disk_broken", what="Input/output error", advice="")

    assert usable(fails({}, broken)[0]) == ["n2/0"]


def test_a_suspect_stays_in_service_where_the_job_needs_it() -> None:
    only = (node("n1", 1),)
    suspects, _ = fails({}, nodes=only)

    assert [d.out_of_service for d in out_of_service(only, suspects)[0].devices] == [None]


def test_a_job_on_a_suspect_device_is_tried_again_elsewhere() -> None:
    one = training(job(), *seats("n1", 1))
    suspects, _ = fails({}, one=one)
    retried = with_fact(one, FactKind.LOST, generation=1, failure=LOST_GPU)
    assert retried.state is State.DEPLOYING

    assert restarts_on_suspect(retried, suspects)
    leaving = apply_event(retried, MovedFromSuspect(), 100.0)[0]
    assert leaving.goal is Goal.HALT
    assert job_view(leaving, row=1, directory="", wait=None, progress=None).state_label == "Deploying · restarting"
    back = with_fact(leaving, FactKind.CLOSED, why="halted")
    assert (back.state, back.members) == (State.QUEUED, ())
    assert not restarts_on_suspect(retried, {})


@pytest.mark.parametrize(("nodes", "why"), [
    (NODES[1:], "node n1 is gone"),
    ((replace(NODES[0], cordoned="not ready: gone"), NODES[1]), "node n1 is not ready: gone"),
    ((replace(NODES[0], cordoned="not ready: gone"),), None),
    (NODES, None),
    ((), None),
])  # fmt: skip
def test_a_job_restarts_only_where_its_node_takes_learners(nodes: tuple[Node, ...], why: str | None) -> None:
    one = training(job(), *seats("n1", 1))
    retried = with_fact(one, FactKind.LOST, generation=1, failure=KILLED)

    assert node_without_seats(retried, nodes) == why
    assert node_without_seats(one, nodes) is None, "its learners run there"
    if why is not None:
        leaving, (text,) = apply_event(retried, MovedFromSuspect(why=why), 100.0)
        assert leaving.goal is Goal.HALT
        assert text.text == f"N{why[1:]}. The job restarts elsewhere."


def program(number: int, *, unit: str = "GPU") -> Job:
    one = training(job(number), *seats("n1", 1))
    return replace(one, unit=unit, spec=replace(one.spec, name=f"program-{number}"))


def failing(
    *failures: tuple[int, Failure], unit: str = "GPU", nodes: tuple[Node, ...] = NODES
) -> Mapping[str, Suspect]:
    """Return what is suspect after these programs have failed on the first GPU, minutes apart."""
    suspects: Mapping[str, Suspect] = {}
    for number, (who, failure) in enumerate(failures):
        suspects, _ = fails(suspects, failure, 100.0 + 90.0 * number, nodes, program(who, unit=unit))
    return suspects


def test_different_programs_that_are_killed_on_a_gpu_cordon_it() -> None:
    assert usable(failing((1, KILLED))) == ["n1/0", "n1/1", "n2/0"]
    one_node = (NODES[0],)
    suspects = failing((1, KILLED), (2, HUNG), (1, KILLED), nodes=one_node)

    (gpu,) = suspects.values()
    assert (gpu.device, gpu.is_cordoned) == ("n1/0", True)
    assert gpu.reason.startswith("failed 3 times in an hour: killed from outside (SIGKILL) (job-1); uncordon n1")


def test_single_failing_program_accuses_no_device() -> None:
    assert usable(failing(*[(1, HUNG)] * 5)) == ["n1/0", "n1/1", "n2/0"]


def test_a_full_memory_is_no_evidence_against_a_device() -> None:
    assert failing((1, FULL), (2, FULL), (3, FULL)) == {}


def test_cpu_slots_are_never_suspect_for_killed_learners() -> None:
    assert failing((1, KILLED), (2, KILLED), (3, KILLED), unit="CPU slot") == {}


def test_the_only_device_stays_in_service_after_kills() -> None:
    only = (node("n1", 1),)
    suspects = failing((1, KILLED), (2, KILLED), (3, KILLED), nodes=only)

    assert [d.out_of_service for d in out_of_service(only, suspects)[0].devices] == [None]


def test_training_on_a_device_clears_it_of_kills_and_hangs() -> None:
    suspects = failing((1, KILLED), (2, KILLED))
    assert usable(suspects) == ["n2/0"]
    one = program(3)
    assert cleared(suspects, one, fact(one, FactKind.LEARNER_UP, member=one.gang[0].member)) is suspects
    assert cleared(suspects, one, fact(one, FactKind.CHECKPOINT, step=8)) == {}
    broken, _ = fails({}, LOST_GPU)
    assert cleared(broken, one, fact(one, FactKind.CHECKPOINT, step=8)) is broken


def test_the_learners_of_a_gang_count_once() -> None:
    gang = training(job(learners=(2, 2)), *seats("n1", 2))
    suspects: Mapping[str, Suspect] = {}
    for member in gang.gang:
        down = fact(gang, FactKind.LEARNER_DOWN, member=member.member, failure=HUNG)
        suspects, _ = struck(suspects, gang, down, NODES, 100.0)

    assert len(suspects["n1/"].at_s) == 1
