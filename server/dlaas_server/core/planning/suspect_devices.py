"""Suspect devices and nodes: after a hardware failure they take no learners for a while, then none at all. Pure.

The affected job moves elsewhere if there is room for it. Learners that are killed or hang are weaker evidence, since
the program may be the cause: these count for GPUs only, and only if different programs fail there one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dlaas_server.core.model.cluster import Device, Node, Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count
from jupyter_dlaas.wire.journal import CheckpointSaved, Fact, Goal, JobCompleted, LearnerDown
from jupyter_dlaas.wire.protocol import Cause, Failure, State

__all__ = [
    "Suspect",
    "cleared",
    "expiry_s",
    "node_without_seats",
    "out_of_service",
    "restarts_on_suspect",
    "struck",
    "trusted_again",
    "withheld",
]

SUSPECT_S: Final = 600.0
"""Seconds that a device or node takes no learners after a failure."""
WINDOW_S: Final = 3600.0
STRIKES: Final = 3
"""Number of failures within WINDOW_S after which it stays out of service until its node is uncordoned."""
_KILLED: Final = "killed"
_DEVICE_CODES: Final = frozenset({"gpu_lost"})
"""Codes of failures of a single device; other hardware failures concern the node."""
GANG_S: Final = 60.0
"""Seconds within which failures of one program count once: the learners of a gang fail together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Device, or node (empty `device`), that failed under jobs at these times, newest last."""

    node: str
    device: str = ""
    at_s: tuple[float, ...]
    what: str
    is_out: bool
    is_cordoned: bool = False
    programs: tuple[str, ...] = ()
    """Programs whose learners were killed or hung there, one for each of `at_s`; empty after a hardware failure."""

    @property
    def reason(self) -> str:
        """Reason shown for not placing learners there."""
        if self.is_cordoned:
            return (
                f"failed {count(len(self.at_s), 'time')} in an hour: {self.what}; uncordon {self.node} to use it again"
            )
        return f"suspect after a failure: {self.what}"


def struck(
    suspects: Mapping[str, Suspect], job: Job, fact: LearnerDown, nodes: Sequence[Node], now_s: float
) -> tuple[Mapping[str, Suspect], str]:
    """Count a learner's failure if its device may be the cause. Return the suspects, and a sentence for the history.

    `job` is its state before this fact. A first failure takes the device out of service only if the job can start
    without it.
    """
    seat = next((m.seat for m in job.members if m.member == fact.member), None)
    failure = fact.failure
    if seat is None or failure is None:
        return suspects, ""
    if _is_indication(failure) and job.unit == "GPU":
        return _indicated(suspects, job, seat, failure, nodes, now_s)
    if failure.cause is not Cause.HARDWARE:
        return suspects, ""
    found, sentences = dict(suspects), []
    for device in seat.devices if failure.code in _DEVICE_CODES and seat.devices else ("",):
        key = f"{seat.node}/{device}"
        before = found.get(key)
        earlier = before.at_s if before is not None else ()
        times = (*(at_s for at_s in earlier if now_s - at_s < WINDOW_S), now_s)
        is_cordoned = len(times) >= STRIKES
        one = Suspect(
            node=seat.node,
            device=device,
            at_s=times,
            what=f"{failure.what} ({job.id})",
            is_out=True,
            is_cordoned=is_cordoned,
        )
        fits_elsewhere = _fits(job, out_of_service(nodes, {**found, key: one}))
        found[key] = replace(one, is_out=is_cordoned or fits_elsewhere)
        if found[key].is_out:
            what = f"A device of {seat.node}" if device else seat.node
            until = "until it is uncordoned" if is_cordoned else "for 10 min"
            sentences.append(f"{what} takes no new learners {until}: {one.reason}.")
    return found, " ".join(sentences)


def _is_indication(failure: Failure) -> bool:
    """Return whether the learner hung, or was killed without evidence of a full memory."""
    return failure.cause is Cause.HANG or failure.code == _KILLED


def _indicated(
    suspects: Mapping[str, Suspect], job: Job, seat: Seat, failure: Failure, nodes: Sequence[Node], now_s: float
) -> tuple[Mapping[str, Suspect], str]:
    """Count a killed or hung learner for its GPUs, and for its node in a pool of several."""
    found, sentences, program = dict(suspects), [], f"{job.owner}/{job.name}"
    for device in (*seat.devices, *([""] if len(nodes) > 1 else [])):
        key = f"{seat.node}/{device}"
        before = found.get(key)
        if before is not None and (before.is_cordoned or not before.programs):
            continue  # more is known of it already
        earlier = [] if before is None else list(zip(before.at_s, before.programs, strict=True))
        earlier = [(at_s, name) for at_s, name in earlier if now_s - at_s < WINDOW_S]
        if any(name == program and now_s - at_s < GANG_S for at_s, name in earlier):
            continue
        times, programs = (*(at_s for at_s, _ in earlier), now_s), (*(name for _, name in earlier), program)
        one = Suspect(
            node=seat.node,
            device=device,
            at_s=times,
            what=f"{failure.what} ({job.id})",
            is_out=True,
            is_cordoned=len(times) >= STRIKES,
            programs=programs,
        )
        is_accused = len(set(programs)) > 1 and _fits(job, out_of_service(nodes, {**found, key: one}))
        found[key] = one if is_accused else replace(one, is_out=False, is_cordoned=False)
        if is_accused:
            what = f"A device of {seat.node}" if device else seat.node
            until = "until it is uncordoned" if one.is_cordoned else "for 10 min"
            sentences.append(f"{what} takes no new learners {until}: {one.reason}.")
    return found, " ".join(sentences)


def cleared(suspects: Mapping[str, Suspect], job: Job, fact: Fact) -> Mapping[str, Suspect]:
    """Drop the indications against the seats of a job that trains there: a checkpoint or its end proves that it can."""
    if not isinstance(fact, CheckpointSaved | JobCompleted):
        return suspects
    proven = {f"{m.seat.node}/{device}" for m in job.gang for device in (*m.seat.devices, "")}
    kept = {key: one for key, one in suspects.items() if key not in proven or one.is_cordoned or not one.programs}
    return suspects if len(kept) == len(suspects) else kept


def _fits(job: Job, nodes: Iterable[Node]) -> bool:
    """Return whether the job's least size fits on what is in service, in use or not."""
    each = job.spec.gpus_per_learner
    usable = [sum(d.out_of_service is None for d in node.devices) for node in nodes if node.cordoned is None]
    return bool(usable) if each == 0 else sum(n // each for n in usable) >= job.spec.learners_min


def trusted_again(suspects: Mapping[str, Suspect], now_s: float) -> Mapping[str, Suspect]:
    """Return devices to service that have not failed for SUSPECT_S; drop those that have not failed within WINDOW_S."""
    found: dict[str, Suspect] = {}
    for key, one in suspects.items():
        since_s = now_s - one.at_s[-1]
        if one.is_cordoned or since_s < SUSPECT_S:
            found[key] = one
        elif since_s < WINDOW_S:
            found[key] = replace(one, is_out=False)
    return suspects if found == dict(suspects) else found


def expiry_s(suspects: Mapping[str, Suspect]) -> float | None:
    """Return the time at which the next device returns to service; None if none is suspect."""
    return min((s.at_s[-1] + SUSPECT_S for s in suspects.values() if s.is_out and not s.is_cordoned), default=None)


def out_of_service(nodes: Sequence[Node], suspects: Mapping[str, Suspect]) -> tuple[Node, ...]:
    """Return the nodes with suspect devices out of service and suspect nodes cordoned."""
    return withheld(nodes, {(s.node, s.device): s.reason for s in suspects.values() if s.is_out})


def withheld(nodes: Sequence[Node], reasons: Mapping[tuple[str, str], str]) -> tuple[Node, ...]:
    """Return the nodes with these devices out of service, and nodes (empty device) cordoned, for these reasons."""
    if not reasons:
        return tuple(nodes)

    def judged(node: Node, device: Device) -> Device:
        reason = reasons.get((node.name, device.id))
        return device if reason is None or device.out_of_service else replace(device, out_of_service=reason)

    return tuple(
        replace(
            node,
            cordoned=node.cordoned or reasons.get((node.name, "")),
            devices=tuple(judged(node, device) for device in node.devices),
        )
        for node in nodes
    )


def restarts_on_suspect(job: Job, suspects: Mapping[str, Suspect]) -> bool:
    """Return whether the job restarts on suspect seats after a loss, so that it must start elsewhere."""
    return _restarts(job) and any(_is_suspect(m.seat, suspects) for m in job.gang)


def node_without_seats(job: Job, nodes: Sequence[Node]) -> str | None:
    """Return why a job must restart elsewhere after a loss: a node is gone or cordoned. None if it need not.

    `nodes`: as the pool reports them; empty while they are unknown. A cordoned node is left only if there is another.
    """
    if not nodes or not _restarts(job):
        return None
    cordons = {node.name: node.cordoned for node in nodes}
    names = sorted({member.seat.node for member in job.gang})
    gone = [f"node {name} is gone" for name in names if name not in cordons]
    cordoned = [f"node {name} is {cordons[name]}" for name in names if cordons.get(name) is not None]
    if all(reason is not None for reason in cordons.values()):
        cordoned = []
    return next(iter([*gone, *cordoned]), None)


def _restarts(job: Job) -> bool:
    return job.state is State.DEPLOYING and job.failure is not None and job.goal is Goal.RUN


def _is_suspect(seat: Seat, suspects: Mapping[str, Suspect]) -> bool:
    keys = (f"{seat.node}/", *(f"{seat.node}/{device}" for device in seat.devices))
    return any(suspects[key].is_out for key in keys if key in suspects)
