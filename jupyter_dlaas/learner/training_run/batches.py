"""One pass over the data: the iterator behind `run.batches`, across membership changes and lost learners."""

from __future__ import annotations

import functools
import importlib
import io
import sys
import weakref
from collections.abc import Generator, Iterator
from contextlib import closing, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jupyter_dlaas.learner.data.position import Position
from jupyter_dlaas.learner.data.sharding import Feed, Place, Share, feed
from jupyter_dlaas.learner.data.sources import BadData, Source, length
from jupyter_dlaas.learner.elastic.step_timing import Work
from jupyter_dlaas.learner.environment.seeds import derive, seed_all
from jupyter_dlaas.learner.reporting.progress_bars import Numbered
from jupyter_dlaas.learner.training_run import checkpoint_state, divergence, independence_check, training_loop
from jupyter_dlaas.learner.training_run.step_rollback import RepeatedStep

if TYPE_CHECKING:
    from jupyter_dlaas.learner.data.batch_policy import Growth
    from jupyter_dlaas.learner.training_run.state import RunState

__all__ = ["Batches"]


class Batches(Numbered):
    """One pass over the data, sharded for this learner. Iterate over it once; `len()` is the number of steps."""

    def __init__(self, owner: RunState, source: Source, growth: Growth | None = None) -> None:
        self._run = owner
        self._source = source
        self._growth = growth
        self._device = owner.device
        self.index = -1
        """The index of the batch last yielded in this pass, from 0. Identical in all learners and after a restart."""

    def __len__(self) -> int:
        return length(self._source)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._batches()
        self._iterator = weakref.ref(iterator)
        return iterator

    def _batches(self) -> Generator[Any]:
        run = self._run
        training_loop.begin(run)
        divergence.check(run)
        checkpoint_state.begin_loop(run)
        checkpoint_state.report_inner(run, self._iterator(), item="batch", loop="run.batches(…)")
        run.counts_epochs = False
        independence_check.look_at_loop(run, parts=True)
        call, run.call = run.call, run.call + 1
        resume = run.resume if run.resume is not None and run.resume.epoch == run.epoch else None
        if resume is not None and call < resume.call:
            return  # the program completed this pass before the checkpoint
        here = Position(epoch=run.epoch, call=call, index=0, step=run.step)
        if resume is not None:
            here = Position(epoch=run.epoch, call=call, index=resume.index, step=run.step, sample=resume.sample)
        run.growth = None if self._growth is None else self._growth.bind(run.growth)
        run.gate.factor = None if run.growth is None else run.growth.factor
        yield from self._steps(here, derive(run.seed, run.epoch, call))

    def _steps(self, here: Position, seed: int) -> Iterator[Any]:
        shards = self._run.exact.shards if self._run.exact is not None else 0
        with closing(feed(self._source, seed, shards)) as todo:
            yield from self._pass(todo, here)

    def _pass(self, todo: Feed, here: Position) -> Iterator[Any]:
        run = self._run
        if here.call == 0:
            run.meter.steps_per_epoch = max(run.meter.steps_per_epoch, todo.steps)
        if run.gang is not None and run.exact is None:
            run.gang.watch_passes()
        if run.is_joining:
            yield from self._rehearse(todo)
            position = run.membership.join()
            if not self._is_here(position, here):
                return
            here = position
        while todo.has(here.sample, self._size()):
            position = training_loop.boundary(run, here)
            if position is not here:
                if not self._is_here(position, here):
                    return
                here = position
                continue
            training_loop.reach(run)
            if (work := self._work()) is not None:
                work.begin()
            size = self._size()  # the gang may just have changed
            share = todo.share(Place(here.sample, size, run.rank, run.world_size))
            yield from self._step(here, share, size)
            if run.gate.end():
                after = here.sample + share.total
                here = Position(epoch=here.epoch, call=here.call, index=here.index + 1, step=run.step, sample=after)
            else:
                self._undo(share.total)
                run.gate.on_step = self._repeated.watch_again()
                here = Position(epoch=here.epoch, call=here.call, index=here.index, step=run.step, sample=here.sample)
        training_loop.weigh(run, None)
        if run.gang is not None and run.exact is None:
            run.gang.share_buffers()

    def _step(self, here: Position, share: Share, size: int) -> Iterator[Any]:
        run = self._run
        self.index = here.index
        for one in share.bad:
            training_loop.report_bad_sample(run, one)
        training_loop.weigh(run, share, is_counted=self._source.skips_bad, size=size)
        may_lose = training_loop.may_lose(run)
        if may_lose:
            assert run.context is not None
            self._repeated = RepeatedStep(run, run.context)
            run.gate.on_failure = self._repeated.note
        if run.accumulated is not None:
            run.accumulated.keep(may_lose=may_lose)
        training_loop.count(run, share.total)
        run.gate.begin()
        if run.growth is not None and run.growth.rule == "adascale" and share.total == size:
            run.gate.before_step = functools.partial(self._learn, run.gang.watch() if run.gang else None)
        if (gang := run.gang) is not None:
            gang.step = run.step
        try:
            yield self._given(share)
        except GeneratorExit:
            run.gate.close()
            if gang is not None and (line := divergence.left_at()):
                gang.leave_pass(line)
            raise
        divergence.check(run)

    def _work(self) -> Work | None:
        """Return this gang's step timing; None in exact mode or if the membership is fixed."""
        gang = self._run.gang
        if gang is None or not gang.may_change or self._run.exact is not None:
            return None
        if gang.work is None:
            assert self._run.context is not None
            gang.work = Work(self._run.context.control.send, gang.skew())
        found: Work = gang.work
        return found

    def _learn(self, watched: Any) -> None:
        """Update AdaScale with the variance of gradients between learners, before the optimiser's step."""
        run = self._run
        run.gate.before_step = None
        if watched is not None and run.growth is not None:
            local, mean = watched()
            run.growth.learn(local, mean, run.world_size, self._size())

    def _given(self, share: Share) -> Any:
        """Return the batch that the user's loop receives."""
        run = self._run
        if run.exact is not None:
            parts = [(number, placed(part, self._device), count) for number, part, count in share.own]
            seed_all(derive(run.seed, run.step, "loop"))
            return importlib.import_module("jupyter_dlaas.learner.exact.exact_step").Parts(share.shards, parts)
        if share.batch is None:
            raise BadData("run.batches: none of this learner's first samples can be read; the reasons are in the log")
        return placed(share.batch, self._device)

    def _undo(self, samples: int) -> None:
        """Undo a step in which other learners were lost, so that it can be repeated."""
        run = self._run
        training_loop.uncount(run, samples)
        if run.accumulated is not None:
            run.accumulated.undo()
        self._repeated.undo()

    def _size(self) -> int:
        growth = self._growth
        return self._source.batch_size if growth is None else growth.batch(self._run.world_size)

    def _rehearse(self, todo: Feed) -> Iterator[Any]:
        """Run two steps whose effects are overwritten, to pay one-time costs (imports, memory) before joining."""
        run, size = self._run, self._size()
        place = Place(0, size, run.rank, run.world_size) if run.exact is None else Place(0, size, 0, 1)
        with redirect_stdout(_Nowhere()):
            for _ in range(2):
                if todo.has(0, size):
                    run.gate.begin()
                    share = todo.share(place)
                    yield self._given(replace(share, shards=1, own=share.own[:1]))
                    run.gate.close()

    def _is_here(self, position: Position, here: Position) -> bool:
        """Return whether training continues in this pass; otherwise set the position to resume from."""
        run = self._run
        if (position.epoch, position.call) == (here.epoch, here.call):
            run.resume = run.restored = None
            return True
        run.resume, run.goes_back = position, position.epoch < here.epoch
        return False


class _Nowhere(io.TextIOBase):
    """A stream that discards what is printed in a rehearsal."""

    def write(self, text: str) -> int:
        return len(text)


def placed(batch: Any, device: Any) -> Any:
    """Return a batch with its tensors on `device`."""
    if "torch" in sys.modules and device.type != "cpu":
        return importlib.import_module("jupyter_dlaas.learner.data.batch_device").to_device(batch, device)
    return batch
