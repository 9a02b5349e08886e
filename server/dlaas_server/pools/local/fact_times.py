"""Times of a journal's facts by the engine's clock, instead of the guardian's time of day."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from jupyter_dlaas.runtime.system.process import boot_id
from jupyter_dlaas.wire.journal import Fact, GuardianUp

__all__ = ["on_clock"]


def on_clock(facts: Iterable[Fact], at_uptime: Callable[[float], float], *, is_of_this_boot: bool) -> list[Fact]:
    """Return the facts with their times by `at_uptime`; those of an earlier boot, or without an uptime, as they are."""
    found: list[Fact] = []
    for fact in facts:
        if isinstance(fact, GuardianUp) and fact.boot is not None:
            is_of_this_boot = fact.boot == boot_id()
        has_time = fact.up_s is not None and is_of_this_boot
        found.append(replace(fact, at_s=at_uptime(fact.up_s)) if has_time and fact.up_s is not None else fact)
    return found
