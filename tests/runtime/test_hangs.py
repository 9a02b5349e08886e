"""Who of a gang hangs, whom the others wait for, and who is left alone."""

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
    """A learner that has not moved for so long, and made no step for so long."""
    made_s = NOW - max(still_s, step_s if step_s is not None else still_s)
    fields = {"heard_s": NOW, **more}
    return Pulse(step_s=made_s, moved_s=NOW - still_s, step=7, collectives=collectives, **fields)  # type: ignore[arg-type]  # the fields of Pulse


def test_who_does_not_move_hangs_and_who_waits_for_it_does_not() -> None:
    found = judge({0: pulse(40, collectives=6), 1: pulse(40, collectives=5)}, (), NOW, LIMIT_S)

    assert list(found.hung) == [1]
    assert not found.is_mutual


def test_who_moves_is_left_alone_however_long_its_step_takes_and_the_others_are_told() -> None:
    found = judge(
        {0: pulse(40, collectives=6), 1: pulse(0, step_s=4000, collectives=5, at="cell [3], line 2")}, (), NOW, LIMIT_S
    )

    assert not found.hung
    assert found.awaited == (1, "cell [3], line 2")


def test_who_was_heard_before_another_went_on_is_not_taken_to_be_behind() -> None:
    pulses = {
        0: pulse(0, step_s=10, collectives=9, collective_s=NOW),
        1: pulse(0, step_s=10, collectives=5, heard_s=NOW - 0.4),
    }
    assert judge(pulses, (), NOW, 1.0).awaited is None

    pulses[1].receive(Heartbeat(step=7, collectives_started=5, is_moving=True, place="cell [3], line 2"), NOW + 0.1)
    assert judge(pulses, (), NOW + 0.1, 1.0).awaited == (1, "cell [3], line 2")


def test_nobody_is_awaited_where_nobody_waits() -> None:
    assert judge({0: pulse(0, step_s=4000)}, (), NOW, LIMIT_S).awaited is None


def test_all_at_once_wait_for_each_other_also_where_one_was_seen_to_move_a_moment_later() -> None:
    found = judge({0: pulse(30.4), 1: pulse(29.6)}, (), NOW, LIMIT_S)

    assert found.is_mutual
    assert list(found.hung) == [0, 1]


def test_nobody_alone_is_to_blame_before_the_others_were_seen_to_move_once_more() -> None:
    pulses = {0: pulse(32), 1: pulse(10)}
    assert not judge(pulses, (), NOW, LIMIT_S).hung, "the other may be in the same deadlock"

    pulses[1].receive(Heartbeat(step=7, collectives_started=5, is_moving=True), NOW)
    assert list(judge(pulses, (), NOW, LIMIT_S).hung) == [0]

    found = judge({0: pulse(50), 1: pulse(29)}, (), NOW, LIMIT_S)
    assert found.is_mutual
    assert list(found.hung) == [0, 1]


def test_a_stopped_process_is_not_waited_for_where_others_are_and_is_where_it_is_alone() -> None:
    stopped = pulse(5, stopped_s=NOW - 5)

    assert list(judge({0: pulse(5, collectives=6), 1: stopped}, (), NOW, LIMIT_S).hung) == [1]
    assert not judge({1: stopped}, (), NOW, LIMIT_S).hung


def test_a_gang_that_is_stopped_as_a_whole_is_left_alone() -> None:
    stopped = pulse(5, stopped_s=NOW - 5)

    assert not judge({0: stopped, 1: stopped}, (), NOW, LIMIT_S).hung


def test_who_is_heard_waits_for_who_is_not() -> None:
    silent = pulse(40, heard_s=NOW - 5)

    assert list(judge({0: pulse(40), 1: silent}, (), NOW, LIMIT_S).hung) == [1]


def test_a_slow_gang_has_ten_of_its_steps_of_time() -> None:
    slow = pulse(40)
    slow.usual.extend([6.0, 6.0, 6.0])

    waiting = pulse(40, collectives=6)

    assert not judge({0: slow, 1: waiting}, (), NOW, LIMIT_S).hung
    assert judge({0: pulse(40), 1: waiting}, (), NOW, LIMIT_S).hung


def test_who_keeps_nobody_waiting_has_ten_minutes() -> None:
    assert not judge({0: pulse(590)}, (), NOW, LIMIT_S).hung
    assert judge({0: pulse(601)}, (), NOW, LIMIT_S).hung


def test_the_owners_limit_holds_for_a_lone_learner() -> None:
    assert not judge({0: pulse(44)}, (), NOW, 45.0, is_set=True).hung
    assert judge({0: pulse(45)}, (), NOW, 45.0, is_set=True).hung


def test_who_is_left_and_stands_still_where_another_hung_hung_with_it() -> None:
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


def test_beats_tell_the_usual_step_and_a_system_that_sees_it_work_counts_as_movement() -> None:
    one = Pulse(step_s=0.0, moved_s=0.0, heard_s=0.0)
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
    heard_s=st.floats(NOW - 10, NOW),
    stopped_s=st.none() | st.floats(0, NOW),
)


@given(st.dictionaries(st.integers(0, 5), pulses, max_size=5), st.sets(st.integers(0, 5)))
def test_nobody_is_ended_who_moves_or_waits(found: dict[int, Pulse], joining: set[int]) -> None:
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
