"""The guardian's decision table over all goals and flags."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from jupyter_dlaas.runtime.guardian.decide import FLAGS, RULES, Act, Seen, decide
from jupyter_dlaas.wire.journal import Goal, Wanted

STATES = [
    (goal, dict(zip(FLAGS, flags, strict=True)))
    for goal in Goal
    for flags in itertools.product((False, True), repeat=len(FLAGS))
]


def act_of(goal: Goal, flags: dict[str, bool]) -> Act:
    seen = Seen(
        generation=1,
        alive=2 * flags["is_alive"],
        **{name: flags[name] for name in FLAGS if name not in ("is_alive", "is_newer")},
    )
    return decide(Wanted(revision=1, goal=goal, generation=1 + flags["is_newer"]), seen)


def acts(goal: Goal | None = None, **flags: bool) -> Iterator[Act]:
    """Return the actions in all states with this goal and these flags."""
    for other, state in STATES:
        if goal in (None, other) and state.items() >= flags.items():
            yield act_of(other, state)


def test_the_first_row_that_fits_decides_in_all_384_states() -> None:
    firsts = [next(number for number, rule in enumerate(RULES) if rule.fits(goal, flags)) for goal, flags in STATES]

    assert len(STATES) == 384
    assert [act_of(goal, flags) for goal, flags in STATES] == [RULES[number].act for number in firsts]
    assert set(firsts) == set(range(len(RULES))), "each row decides somewhere"


def test_table_agrees_with_the_former_conditions() -> None:
    for goal, flags in STATES:
        assert act_of(goal, flags) is former(goal, flags), (goal, flags)


def former(goal: Goal, on: dict[str, bool]) -> Act:
    """Return the conditions as text, one after the other."""
    if goal is Goal.STOP:
        return Act.END if on["is_alive"] else Act.STOPPED
    if on["is_alive"]:
        if on["is_broken"]:
            return Act.END
        if on["is_changing"] and not on["is_leaving"]:
            return Act.CHANGE
        if on["is_leaving"] or goal is Goal.HALT:
            return Act.LEAVE
        if on["is_newer"]:
            return Act.CHANGE if on["may_change"] else Act.LEAVE
        return Act.WAIT
    if on["is_complete"]:
        return Act.COMPLETE
    if goal is Goal.HALT:
        return Act.HALTED
    if on["is_newer"]:
        return Act.START
    return Act.HALTED if on["is_leaving"] else Act.WAIT


def test_no_state_leads_to_a_forbidden_action() -> None:
    closing = {Act.COMPLETE, Act.HALTED, Act.STOPPED}

    assert not closing & set(acts(is_alive=True)), "a job is closed only when no learner is alive"
    assert Act.START not in set(acts(is_alive=True)), "a generation never starts beside another one"
    assert set(acts(is_alive=False)) == {*closing, Act.START, Act.WAIT}, "no learner to end or change"
    assert set(acts(Goal.STOP)) == {Act.END, Act.STOPPED}
    assert set(acts(is_alive=True, is_broken=True)) == {Act.END}
    assert Counter(acts(Goal.HALT, is_alive=False)).keys() == {Act.COMPLETE, Act.HALTED}
    assert decide(None, Seen(generation=-1, alive=0)) is Act.WAIT
