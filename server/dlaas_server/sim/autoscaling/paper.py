"""Experiment of Or et al.: a training with a fixed size, under their rule and under ours, from several sizes on.

Published and re-run are kept apart. What was published and could be read: the gains in the abstract, and the settings
in the authors' own scripts. Of the trainings themselves (ResNet on CIFAR-10 and ImageNet, up to 60 GPUs) no times per
step were published; here they run along what Pollux' authors measured of these two on nodes of 4 GPUs, with the
scripts' batches, cut among the learners.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from dlaas_server.core.elasticity.objective import NOTHING
from dlaas_server.sim.autoscaling.curves import Curve
from dlaas_server.sim.autoscaling.experiment import CONDITION, NOISE, Every, Paper, Rule, Searching, Trained, trained
from dlaas_server.sim.replay.event_loop import Unrunnable

__all__ = ["OURS", "THEIRS", "TRAININGS", "Case", "Training", "autoscaling", "cases", "rules", "saved", "steps_of"]

LOW: Final = 4
HIGH: Final = 60
SPAWN: Final = 4
EVERY_STEPS: Final = 10
STAYING_STEPS: Final = 100
HEAD: Final = (
    f"{'from':>4}  {'rule':<12}{'ends with':>10}{'after':>12}{'whole training':>16}{'GPU time':>14}"
    f"{'time saved':>12}{'GPU time saved':>16}"
)
FIXED: Final = "fixed"
THEIRS: Final = "their rule"
OURS: Final = "ours"
STARTS: Final = (4, 12, 20, 40, 60)
PUBLISHED: Final = (
    "published, Or, Zhang, Freedman, MLSys 2020, abstract: ResNet on CIFAR-10 and ImageNet,",
    "  completion time down by up to 45 %, GPU time down by up to 85.1 %",
    "published, the authors' scripts (github.com/andrewor14/models, deploy/): S = 0.1, from 4 to 60 learners, 4 more",
    "  every 10 steps, 100 steps at a size that fails; 200 epochs of CIFAR-10, 5 of ImageNet",
    "not found in what could be read, so not given: the tables of the paper (time to target, idle time per change)",
)


@dataclass(frozen=True, slots=True)
class Training:
    """Training of the paper: the profile that stands for it, samples per step, number of steps."""

    name: str
    profile: str
    batch: int
    steps: int


TRAININGS: Final = (
    Training("CIFAR-10, 200 epochs", "cifar10", 1024, 200 * 50_000 // 1024),
    Training("ImageNet, 5 epochs", "imagenet", 8192, 5 * 1_281_167 // 8192),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Result of one training from one size on, under one rule. `settled_s`: time of its last change."""

    start: int
    rule: str
    final: int
    settled_s: float
    took_s: float
    device_s: float


def steps_of(training: Training, high: int = HIGH) -> Curve:
    """Return steps per second at each size; a batch share that is too large for one pass is divided."""
    try:
        from dlaas_server.sim.pollux.profiles import profile_of
    except ImportError:
        raise Unrunnable("Pollux' profiles need numpy and scipy: pip install scipy") from None
    profile = profile_of(training.profile)
    rates = []
    for k in range(1, high + 1):
        placement = (4,) * (k // 4) + ((k % 4,) if k % 4 else ())
        share = ceil(training.batch / k)
        passes = ceil(share / profile.local_most)
        step_s, sync_s = profile.times(placement, max(ceil(share / passes), profile.local_least))
        rates.append(1 / (passes * (step_s - sync_s) + sync_s))
    return Curve(training.name, "Or et al.", tuple(rates))


def rules(high: int = HIGH) -> Mapping[str, Rule]:
    """Return their rule with the settings of their scripts, the same with windows of max(20 steps, 1 s), and ours."""
    return {
        THEIRS: Paper(high, SPAWN, staying=STAYING_STEPS, low=LOW, windows=Every(EVERY_STEPS, 0.0)),
        "at once": Paper(high, SPAWN, low=LOW),
        OURS: Searching(CONDITION, high, LOW),
    }


def cases(training: Training, curve: Curve, seed: int, starts: Sequence[int] = STARTS) -> list[Case]:
    """Run all rules from all sizes on; first of each size the one that never changes."""
    found: list[Case] = []
    for start in starts:
        found.append(_fixed(training, curve, start))
        for name, rule in rules(curve.high).items():
            run = trained(
                lambda _, held: curve.rates[held - 1],
                rule,
                random.Random(f"{training.name} {start} {seed}"),  # noqa: S311  # no secret
                start=start,
                noise=NOISE,
                is_over=lambda run: run.steps >= training.steps,
            )
            found.append(_case(start, name, run))
    return found


def _fixed(training: Training, curve: Curve, start: int) -> Case:
    """Return a constant size."""
    took_s = training.steps / curve.rates[start - 1]
    return Case(start=start, rule=FIXED, final=start, settled_s=0.0, took_s=took_s, device_s=took_s * start)


def _case(start: int, name: str, run: Trained) -> Case:
    return Case(
        start=start, rule=name, final=run.held, settled_s=run.sizes[-1][0], took_s=run.now_s, device_s=run.device_s
    )


def saved(found: Sequence[Case], rule: str) -> tuple[float, float]:
    """Return the largest savings of this rule, (time, GPU time), as shares of those of its fixed initial size."""
    pairs = [(case, _still(found, case)) for case in found if case.rule == rule]
    time = max(1 - case.took_s / still.took_s for case, still in pairs)
    return time, max(1 - case.device_s / still.device_s for case, still in pairs)


def _still(found: Sequence[Case], case: Case) -> Case:
    return next(one for one in found if one.rule == FIXED and one.start == case.start)


def autoscaling(seed: int) -> str:
    """Return the table of each training from each size on, with the largest savings over a fixed size."""
    lines = [*PUBLISHED, "", f"re-run, in virtual time (seed {seed}): 10 % noise, a change costs all rules 0.05 s"]
    for training in TRAININGS:
        curve = steps_of(training)
        found = cases(training, curve, seed)
        best = max(range(LOW, HIGH + 1), key=lambda k: (CONDITION(k, curve.rates[k - 1], NOTHING), -k))
        lines += [
            "",
            f"{training.name}, {training.batch:,} samples a step; best size by their condition: {best}",
            HEAD,
        ]
        lines += [_line(case, _still(found, case)) for case in found]
        for name in rules():
            time, devices = saved(found, name)
            lines.append(f"{name}: time down by up to {time:.0%}, GPU time down by up to {devices:.0%}")
    return "\n".join(lines)


def _line(case: Case, still: Case) -> str:
    said = f"{case.start:>4}  {case.rule:<12}{case.final:>10}{case.settled_s:>10,.0f} s{case.took_s:>14,.0f} s"
    said += f"{case.device_s:>12,.0f} s"
    if case.rule == still.rule:
        return said
    return f"{said}{1 - case.took_s / still.took_s:>12.0%}{1 - case.device_s / still.device_s:>16.0%}"
