"""Check of the command's options: one that the replay would ignore is refused."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable
from typing import Final

from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.sim.replay.event_loop import Unrunnable
from dlaas_server.sim.rules.fgd import FILLERS
from dlaas_server.sim.trace.trace import Trace

__all__ = ["check_experiment", "check_replay", "fills", "policies"]

_OF_ALL: Final = frozenset(
    {"trace", "order", "rules", "part", "pool", "nodes", "against", "seed", "json", "jobs_csv", "plot"}
)
_OF_OURS: Final = frozenset({"placement", "restart_s", "estimate_error", "no_preemption", "score_starts", "spot_share"})
_OF_OTHERS: Final = {"tiresias": frozenset({"restart_s"}), "ffdl": frozenset({"restart_s"})}
"""Additional options of other schedulers' rules; missing rules have none."""
_OF_THE_WORLD: Final = frozenset({"restart_s", "spot_share"})
"""Options that change the events, not the decisions: all policies of one table support them, or none."""
_OF_FILLING: Final = _OF_ALL - {"against", "jobs_csv", "plot"}
_NOT_SCORED: Final = frozenset({"against", "json", "jobs_csv", "plot"})


def fills(options: argparse.Namespace, trace: Trace) -> bool:
    """Return whether pods fill a pool and never end: no times, no order."""
    is_chosen = bool(options.order or options.rules)
    return options.rules in FILLERS or (not is_chosen and trace.format.startswith("openb-pods"))


def policies(options: argparse.Namespace, trace: Trace) -> list[str]:
    """Return the orders and rules to replay, in the order of the command line."""
    usual = "elastic" if trace.format == "pollux" else "shortest"
    return [options.rules or options.order or usual, *options.against]


def _supported(policy: str) -> frozenset[str]:
    if policy in ORDERS:
        return _OF_OURS | {"share"} if policy == "fair" else _OF_OURS
    return _OF_OTHERS.get(policy.partition(":")[0], frozenset())


def check_experiment(given: Collection[str], name: str) -> None:
    """Raise Unrunnable if options besides the seed were given for an experiment, whose settings are fixed."""
    _refuse(f"the experiment {name}", set(given) - {"trace", "seed"})


def check_replay(given: Collection[str], options: argparse.Namespace, trace: Trace) -> None:
    """Raise Unrunnable if an option was given that this replay ignores."""
    source = {"pool_dir"} if options.trace == "history" else {"workload"}
    if fills(options, trace):
        named = set() if options.rules else {"placement"}
        _refuse("a pool that is filled", set(given) - _OF_FILLING - source - named, ", or choose an --order")
        return
    names = policies(options, trace)
    if options.score_starts:
        _refuse("--score-starts", _NOT_SCORED & set(given))
    for name in names:
        of_the_world = _OF_THE_WORLD & set(given) - _supported(name)
        _refuse(name, of_the_world, _hint(name, of_the_world))
    ignored = set(given) - _OF_ALL - source - frozenset[str]().union(*map(_supported, names))
    _refuse(" beside ".join(names), ignored, _hint(names[0], ignored))


def _hint(policy: str, ignored: Collection[str]) -> str:
    if "share" in ignored:
        return ", or choose --order fair"
    return "" if policy in ORDERS or policy == "elastic" or policy.startswith("pollux:") else ", or choose an --order"


def _refuse(subject: str, ignored: Iterable[str], hint: str = "") -> None:
    options = [f"--{name.replace('_', '-')}" for name in sorted(ignored)]
    if options:
        them = "it" if len(options) == 1 else "them"
        raise Unrunnable(f"{subject} takes no {' and no '.join(options)}: leave {them} out{hint}")
