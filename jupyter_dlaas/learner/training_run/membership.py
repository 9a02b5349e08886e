"""A learner's part in a membership change: build the next process group beside the current one, and transfer the state.

Imported only in a gang whose program uses torch.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.learner.checkpoint.trained_steps import Trained
from jupyter_dlaas.learner.control.boundaries import Verdict
from jupyter_dlaas.learner.control.context import Context
from jupyter_dlaas.learner.data.position import Position
from jupyter_dlaas.learner.elastic import process_group, state_transfer
from jupyter_dlaas.learner.environment.seeds import derive, seed_all
from jupyter_dlaas.learner.reporting.metrics import Metrics
from jupyter_dlaas.learner.training_run import checkpoint_state, training_loop
from jupyter_dlaas.runtime.system.process import PRIVATE, uptime_s
from jupyter_dlaas.transfer import rng_state
from jupyter_dlaas.wire.learner_messages import BuildGroup, GenerationSteps, SwitchGroup
from jupyter_dlaas.wire.step_range import Range

if TYPE_CHECKING:
    from jupyter_dlaas.learner.elastic.data_parallel import Gang
    from jupyter_dlaas.learner.training_run.state import RunState

__all__ = ["LearnerMembership"]

_HEAVY: Final = ("objects", "gradients")
"""Keys of the content that may hold hundreds of MB."""
_AGAIN_S: Final = 0.1
_AGAIN_MOST_S: Final = 5.0
"""The retry delay for a group that cannot be built: it doubles from the first value up to this maximum."""


class LearnerMembership:
    """One learner's membership across all process groups of its gang. Works on the state of the run."""

    def __init__(self, run: RunState, context: Context, gang: Gang) -> None:
        self._run, self._context, self._gang = run, context, gang
        self._changed = threading.Condition()
        self._built: dict[int, Any] = {}
        self._lost_before = 0
        """Groups of membership epochs before this one are lost."""
        self._membership_epoch = -1 if run.is_joining else 0
        """The membership epoch of the current group; -1: in no group yet."""
        self._newest = self._missed = -1
        """The newest membership epochs whose groups were built, and could not be built or entered."""
        self._failures = 0
        """The number of consecutive failed builds."""
        self._is_parting = False
        """True once it has been asked to leave and has closed the files that the main learner writes."""
        self._trained: list[GenerationSteps] = []
        """The steps trained in each completed generation, by this learner or by the one whose state it received."""
        self._undone: Any = None
        """Content of the program's objects that a joiner has undone before it received the state."""
        run.boundaries.on_build = self._build
        run.boundaries.on_urgent = self._give_up
        context.control.update_state(
            may_change=True, membership_epoch=self._membership_epoch, generation=context.generation
        )

    # -- at a boundary

    def ask(self, step: int) -> Verdict:
        """Return whether to continue, stop or change membership. A learner without its group waits for the next one."""
        if self._gang.is_stranded:
            self._context.control.update_state(stranded_epoch=self._membership_epoch)
        return self._run.boundaries.ask(step, is_stranded=self._gang.is_stranded)

    def change(self, position: Position, arrived_s: float) -> Position | None:
        """Enter the next group, or leave the job; return None if the group was lost before all learners had entered it.

        Otherwise returns `position` itself, or the position of the learner that is furthest ahead, whose state was
        received.
        """
        run, context, switch = self._run, self._context, self._run.boundaries.take()
        if switch is None:
            return position
        if context.member not in switch.members:
            run.metrics.close()  # before the wait below: another learner writes them from now on
            run.meter.hand_over()
            self._is_parting = True
            if not run.boundaries.may_leave(switch.membership_epoch):
                return None
            training_loop.leave(context)
        try:
            content = self._enter(switch, position)
        except RuntimeError:
            self._gang.is_stranded = True
            with self._changed:
                self._missed = max(self._missed, switch.membership_epoch)
                context.control.update_state(missed_epoch=self._missed)
            return None
        self._membership_epoch = switch.membership_epoch
        was_main, self._is_parting = run.rank == 0 and not self._is_parting, False
        run.rank, run.world_size = switch.members.index(context.member), len(switch.members)
        context.rank, context.world_size = run.rank, run.world_size
        if content is not None:
            position = self._adopt(content)
        if run.is_joining:
            context.generation = switch.generation  # an earlier one than planned, if learners were lost
        elif switch.generation > context.generation:
            self._trained.append(self._trained_now())
            run.trained = Trained()
            context.generation = switch.generation
        if was_main and run.rank != 0:
            run.metrics.close()
        if run.rank == 0 and not was_main:
            self._become_main()
        since_s = run.passed_s if switch.boundary is None and run.passed_s else arrived_s
        context.control.update_state(
            step=position.step,
            up_s=uptime_s(),
            is_held=False,
            is_waiting=False,
            membership_epoch=switch.membership_epoch,
            idle_s=None if run.is_joining else time.monotonic() - since_s,
            trained=tuple(self._trained),
            generation=context.generation,
        )
        run.is_joining = False
        return position

    def join(self) -> Position:
        """Wait for the gang, and return the position at which it continues."""
        self._prepare()
        self._context.control.update_state(is_waiting=True)
        nowhere = Position(epoch=-1, step=-1)
        while True:
            found = self.change(nowhere, time.monotonic())
            if found is nowhere:
                training_loop.leave(self._context)
            if found is not None:
                return found

    def _prepare(self) -> None:
        """Do now what the gang would wait for: undo the rehearsed steps, and read a state for the first time."""
        if self._run.namespace is not None:
            self._undone = self._run.namespace.revert_ahead()
        checkpoint_files.from_bytes(state_transfer.to_bytes(rng_state.snapshot()))

    def _enter(self, switch: SwitchGroup, position: Position) -> dict[str, Any] | None:
        """Enter the group; return the state of the learner furthest ahead if this one is behind it, otherwise None.

        Raises RuntimeError if learners are lost meanwhile.
        """
        rank, size = switch.members.index(self._context.member), len(switch.members)
        group = self._take(switch.membership_epoch) if size > 1 else None
        with self._changed:
            self._check(switch.membership_epoch)
            self._gang.enter(group, rank, size)
        mine_is = self._run.gate.progress(position.step)
        steps = self._gang.steps(mine_is)
        furthest = max(steps)
        if min(steps) == furthest:
            return None
        source = steps.index(furthest)
        light, heavy = None, None
        if rank == source:
            completed = (*self._trained, self._trained_now())
            trained = [(one.generation, [(r.epoch, r.first, r.end) for r in one.ranges]) for one in completed]
            light = checkpoint_state.content_of(self._run)[0] | {"position": position, "trained": trained}
            heavy = {name: light.pop(name) for name in _HEAVY}
            if PRIVATE in os.environ:  # otherwise the others read it from the job's file
                light["history"] = self._run.metrics.history
        content: dict[str, Any] = self._gang.hand(light, heavy, source)
        return content if mine_is < furthest else None

    def _trained_now(self) -> GenerationSteps:
        return GenerationSteps(self._context.generation, tuple(self._run.trained))

    def _adopt(self, content: dict[str, Any]) -> Position:
        run = self._run
        if run.is_joining:  # the others may be lost before they have reported the steps they trained
            self._trained = [
                GenerationSteps(generation, tuple(Range(epoch=e, first=first, end=end) for e, first, end in ranges))
                for generation, ranges in content.get("trained", ())
            ]
        run.metrics.history = content.pop("history", run.metrics.history)
        run.restored = content
        run.user_values.clear()
        run.user_values.update(content["state"])
        checkpoint_state.put_back(run, reverts=True, undone=self._undone)
        self._undone = None  # the program runs from now on
        self._gang.take_modes(content["modes"])
        position: Position = content["position"]
        for step in range(run.step, position.step) if not run.is_joining else ():
            # the steps the others were ahead by; the learners that trained them may leave
            run.trained.add(run.epoch, step)
        run.step = position.step
        checkpoint_state.put_back_step(run, content)
        if run.exact is None:
            seed_all(derive(run.seed, run.step, run.rank))
        else:
            rng_state.put_back(content["streams"])
        return position

    def _become_main(self) -> None:
        """Take over the files that only the main learner writes."""
        run, folder = self._run, self._context.job_dir
        history = run.metrics.history if PRIVATE in os.environ else None
        run.metrics = Metrics(folder / "metrics.jsonl", run.step)
        run.metrics.open(history)
        run.meter.become_main(folder / "progress.json")
        run.saved_s = time.monotonic()

    # -- groups

    def _take(self, number: int) -> Any:
        with self._changed:
            while number not in self._built:
                self._check(number)
                self._changed.wait()
            found = self._built.pop(number)
            self._built = {other: group for other, group in self._built.items() if other > number}
        if isinstance(found, Exception):
            raise RuntimeError(f"group {number} was not built: {found}")
        return found

    def _check(self, number: int) -> None:
        if self._lost_before > number:
            raise RuntimeError(f"group {number} was lost before it was entered")

    def _build(self, order: BuildGroup) -> None:
        """Start to build a group in the background. Called in the control thread."""
        number, members = order.membership_epoch, order.members
        if number <= self._run.boundaries.membership_epoch or self._context.member not in members:
            return
        arguments = ((order.host, order.port), number, members.index(self._context.member), len(members))
        threading.Thread(target=self._build_beside, args=arguments, name=f"dlaas-group-{number}", daemon=True).start()

    def _build_beside(self, where: tuple[str, int], number: int, rank: int, size: int) -> None:
        found: Any = None
        try:
            if size > 1:
                found = self._gang.build(where, number, rank, size)
        except Exception as error:  # noqa: BLE001 - raised in the main thread, which waits for it
            found = error
            with self._changed:
                self._failures += 1
                delay_s = _AGAIN_S * 2.0 ** min(self._failures - 1, 8)
            time.sleep(min(delay_s, _AGAIN_MOST_S))
        with self._changed:
            self._built[number] = found
            self._changed.notify_all()
            if isinstance(found, Exception):
                self._missed = max(self._missed, number)
            else:
                self._failures, self._newest = 0, max(self._newest, number)
            # A slow build of an old epoch must not overwrite the reported state of a newer one.
            self._context.control.update_state(built_epoch=self._newest, missed_epoch=self._missed)

    def _give_up(self, number: int) -> None:
        """Mark all groups before this epoch as lost, and wake threads waiting in one. Called in the control thread."""
        with self._changed:
            self._lost_before = number
            self._changed.notify_all()
            lost = self._gang.leave()
        if lost is not None:
            process_group.cut(lost)
