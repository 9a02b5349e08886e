"""Detection of hanging learners: those that hang, those that wait for them, and those that are still starting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.learner.control.heartbeat import Beats
from jupyter_dlaas.runtime.guardian.hang_detection import Pulse, judge, waits
from jupyter_dlaas.runtime.system.process import Activity
from jupyter_dlaas.wire.learner_messages import Heartbeat

NOW = 1000.0
LIMIT_S = 30.0


def pulse(still_s: float = 0.0, *, step_s: float | None = None, collectives: int = 5, **more: object) -> Pulse:
    """Return a learner that has not moved for `still_s` seconds, and made no step for `step_s` seconds."""
    made_s = NOW - max(still_s, step_s if step_s is not None else still_s)
    fields = {"received_s": NOW, **more}
    return Pulse(step_s=made_s, moved_s=NOW - still_s, step=7, collectives=collectives, **fields)  # type: ignore[arg-type]  # the fields of Pulse


def test_unmoving_learner_hangs_and_waiting_ones_do_not() -> None:
    found = judge({0: pulse(40, collectives=6), 1: pulse(40, collectives=5)}, (), NOW, LIMIT_S)

    assert list(found.hung) == [1]
    assert not found.is_mutual


def test_moving_learner_is_left_alone_and_reported_as_awaited() -> None:
    found = judge(
        {0: pulse(40, collectives=6), 1: pulse(0, step_s=4000, collectives=5, at="cell [3], line 2")}, (), NOW, LIMIT_S
    )

    assert not found.hung
    assert found.awaited == (1, "cell [3], line 2")


def test_earlier_heartbeat_does_not_make_a_learner_late() -> None:
    pulses = {
        0: pulse(0, step_s=10, collectives=9, collective_s=NOW),
        1: pulse(0, step_s=10, collectives=5, received_s=NOW - 0.4),
    }
    assert judge(pulses, (), NOW, 1.0).awaited is None

    pulses[1].receive(Heartbeat(step=7, collectives_started=5, is_moving=True, place="cell [3], line 2"), NOW + 0.1)
    assert judge(pulses, (), NOW + 0.1, 1.0).awaited == (1, "cell [3], line 2")


def test_no_awaited_learner_without_waiting_ones() -> None:
    assert judge({0: pulse(0, step_s=4000)}, (), NOW, LIMIT_S).awaited is None


def test_mutually_waiting_learners_hang_despite_a_later_movement() -> None:
    found = judge({0: pulse(30.4), 1: pulse(29.6)}, (), NOW, LIMIT_S)

    assert found.is_mutual
    assert list(found.hung) == [0, 1]


def test_no_single_blame_before_others_moved_again() -> None:
    pulses = {0: pulse(32), 1: pulse(10)}
    assert not judge(pulses, (), NOW, LIMIT_S).hung, "the other may be in the same deadlock"

    pulses[1].receive(Heartbeat(step=7, collectives_started=5, is_moving=True), NOW)
    assert list(judge(pulses, (), NOW, LIMIT_S).hung) == [0]

    found = judge({0: pulse(50), 1: pulse(29)}, (), NOW, LIMIT_S)
    assert found.is_mutual
    assert list(found.hung) == [0, 1]


def test_stopped_process_is_tolerated_only_in_single_learner_jobs() -> None:
    stopped = pulse(5, stopped_s=NOW - 5)

    assert list(judge({0: pulse(5, collectives=6), 1: stopped}, (), NOW, LIMIT_S).hung) == [1]
    assert not judge({1: stopped}, (), NOW, LIMIT_S).hung


def test_wholly_stopped_gang_is_left_alone() -> None:
    stopped = pulse(5, stopped_s=NOW - 5)

    assert not judge({0: stopped, 1: stopped}, (), NOW, LIMIT_S).hung


def test_learner_with_heartbeats_waits_for_the_silent_one() -> None:
    silent = pulse(40, received_s=NOW - 5)

    assert list(judge({0: pulse(40), 1: silent}, (), NOW, LIMIT_S).hung) == [1]


def test_a_slow_gang_has_ten_of_its_steps_of_time() -> None:
    slow = pulse(40)
    slow.usual.extend([6.0, 6.0, 6.0])

    waiting = pulse(40, collectives=6)

    assert not judge({0: slow, 1: waiting}, (), NOW, LIMIT_S).hung
    assert judge({0: pulse(40), 1: waiting}, (), NOW, LIMIT_S).hung


def test_learner_that_delays_no_other_has_ten_minutes() -> None:
    assert not judge({0: pulse(590)}, (), NOW, LIMIT_S).hung
    assert judge({0: pulse(601)}, (), NOW, LIMIT_S).hung


def test_the_owners_limit_holds_for_a_lone_learner() -> None:
    assert not judge({0: pulse(44)}, (), NOW, 45.0, is_set=True).hung
    assert judge({0: pulse(45)}, (), NOW, 45.0, is_set=True).hung


def test_remaining_unmoving_learner_hung_with_the_other() -> None:
    left = pulse(40, suspect_to=7, at="cell [3], line 2")
    found = judge({1: left}, (), NOW, LIMIT_S)

    assert found.is_mutual
    assert found.hung == {1: "it waits for the other learners at cell [3], line 2"}

    left.receive(Heartbeat(step=8), NOW)
    left.step_s = NOW - 40
    assert not judge({1: left}, (), NOW, LIMIT_S).hung, "it has come further: that it waits is its own affair"


def test_a_newcomers_start_has_longer() -> None:
    assert not judge({0: pulse(0), 1: pulse(40)}, (1,), NOW, LIMIT_S).hung
    assert judge({0: pulse(0), 1: pulse(130)}, (1,), NOW, LIMIT_S).hung


def test_cpu_activity_counts_as_movement() -> None:
    one = Pulse(step_s=0.0, moved_s=0.0, received_s=0.0)
    for beat in range(1, 5):
        one.receive(Heartbeat(step=2 * beat), 0.5 * beat)
    assert one.limit_s(1.0) == 10 * 0.25

    one.look(Activity(ticks=10, state="S"), 50.0)
    assert one.still_s(50.0) == 0
    one.look(Activity(ticks=10, state="S"), 60.0)
    assert one.still_s(60.0) == 10
    one.look(Activity(ticks=10, state="D"), 70.0)
    assert one.still_s(70.0) == 0, "a disk may take as long as it likes"


pulses = st.builds(
    pulse,
    st.floats(0, 200),
    step_s=st.floats(0, 500),
    collectives=st.integers(0, 3),
    membership_epoch=st.integers(0, 1),
    is_held=st.booleans(),
    received_s=st.floats(NOW - 10, NOW),
    stopped_s=st.none() | st.floats(0, NOW),
)


@given(st.dictionaries(st.integers(0, 5), pulses, max_size=5), st.sets(st.integers(0, 5)))
def test_moving_or_waiting_learners_are_not_killed(found: dict[int, Pulse], joining: set[int]) -> None:
    verdict = judge(found, joining, NOW, LIMIT_S)

    for member in verdict.hung:
        one = found[member]
        assert one.stopped_s is not None or (member not in waits(found, NOW) and one.still_s(NOW) >= LIMIT_S - 1.0)
    assert verdict.awaited is None or verdict.awaited[0] not in waits(found, NOW)


def test_a_program_without_steps_beats_only_under_a_limit() -> None:
    beats = Beats()
    assert beats.beat() is None

    beats.is_limited = True
    message = beats.beat()

    assert message is not None
    assert (message.step, message.is_moving) == (None, True)
