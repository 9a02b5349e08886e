"""Cost of resizing a running job, planned or by `kill -9`; beside torchrun elastic and torchft.

Every step is stamped by the training itself (one clock for all processes); a pause is the time between two steps of one
that stays, less a usual step after it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from jupyter_dlaas.api import option_parsing
from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.runtime.system.process import stat_of
from tests.bench.elastic_peers import DATA_AND_MODEL, TELL, Peer, torchft, torchrun
from tests.bench.measuring import Bench, Unmeasurable, in_turn
from tests.bench.table import Figure, Line, figure, not_measured, ratio
from tests.whole.site import until

VARIABLES = {"OMP_NUM_THREADS": "1"}
TRIALS_OF_PEERS = 2
SETTLE_STEPS = 40
STEPS = 1200
LINE_BYTES = 20
"""Minimum length of a line that reports a step."""
OURS = f"""{TELL}{DATA_AND_MODEL}
import jupyter_dlaas as dlaas
run = dlaas.run()
model, opt = run.prepare(model, opt)
for epoch in run.epochs(1_000_000):
    for a, b in run.batches((x, y), 64):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        opt.step()
        if not run.internals.is_joining and not run.internals.gate.is_torn:
            tell(run.step, run.world_size)
"""
BIG = OURS.replace("nn.Linear(64 * 16, 10),", "nn.Linear(64 * 16, 4980), nn.Linear(4980, 4000), nn.Linear(4000, 10),")
"""25 million weights with their momentum: 200 MB."""
PLAIN = f"""{TELL}{DATA_AND_MODEL}
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
size = int(os.environ.get("WORLD_SIZE", "1"))
if size > 1:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
data = TensorDataset(x, y)
sampler = DistributedSampler(data) if size > 1 else None
loader = DataLoader(data, 64 // size, shuffle=sampler is None, sampler=sampler)
step = 0
while step < {STEPS + SETTLE_STEPS}:
    for a, b in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        opt.step()
        step += 1
        tell(step, size)
if size > 1:
    os._exit(0)  # what torch does in the end aborts now and then
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A learner ended a step."""

    at_s: float
    pid: int
    number: int
    learners: int


@dataclass
class Found:
    """Figures of one side's trials: seconds, except for `redone`."""

    pause_s: list[float] = field(default_factory=list)
    effective_s: list[float] = field(default_factory=list)
    acknowledged_s: list[float] = field(default_factory=list)
    redone: list[float] = field(default_factory=list)
    after_kill_s: list[float] = field(default_factory=list)
    redone_after_kill: list[float] = field(default_factory=list)


def measure(bench: Bench) -> Iterator[Line]:
    """Measure ours through the engine's API, then the peers; each side's training is the same.

    With torch kept warm, as it is a few seconds after a notebook was opened; one line is of a job from before that.
    """
    cold = _ours(bench, OURS, "cold", 1, kills=False)
    until(lambda: _is_warm(bench), "torch is kept warm")
    ours = _ours(bench, OURS, "small", max(3, bench.runs))
    parts: list[tuple[str, Callable[[], list[Line]]]] = [
        ("a state of 200 MB, join: extra pause", lambda: _big(bench, ours)),
        ("halt and resume", lambda: _halts(bench)),
        ("a step while nothing changes", lambda: _overhead(bench)),
    ]
    if bench.with_peers:
        parts += [
            ("beside torchrun", lambda: _beside(bench, ours, torchrun)),
            ("beside torchft", lambda: _beside(bench, ours, torchft)),
        ]
    yield from _changes(ours, cold)
    for what, part in parts:
        try:
            yield from part()
        except Exception as error:  # noqa: BLE001 - a peer that breaks must not take the other figures with it
            yield not_measured(what, "", f"{type(error).__name__}: {error}")


# -- what the steps tell -----------------------------------------------------------------------------------------------


def _steps(out: Path) -> list[Step]:
    found: list[Step] = []
    for path in out.glob("*.steps"):
        for line in path.read_text().splitlines():
            parts = line.split(" ")
            if len(parts) == 3 and parts[2]:
                found.append(Step(float(parts[0]), int(path.stem), int(parts[1]), int(parts[2])))
    return sorted(found, key=lambda one: one.at_s)


def _reached(out: Path, learners: int, since_s: float, count: int = SETTLE_STEPS) -> list[Step]:
    """Wait until so many steps were made with so many learners."""

    def there() -> bool:
        return sum(1 for one in _steps(out) if one.at_s > since_s and one.learners == learners) >= count

    deadline_s = time.monotonic() + 120.0
    while not there():
        if time.monotonic() > deadline_s:
            logs = "".join(path.read_text()[-400:] for path in sorted(out.glob("*.log")))
            raise Unmeasurable(f"not within 120 s: {count} steps with {learners} learners; {logs}")
        time.sleep(0.1)  # more often would take from those who are measured
    return _steps(out)


def _gap(steps: list[Step], since_s: float, learners: int) -> tuple[float, float, int]:
    """(pause, from `since_s` to the first step of the new size, steps redone), of who stays or comes in its place."""
    first = next(one for one in steps if one.at_s > since_s and one.learners == learners)
    before = [one for one in steps if one.at_s < first.at_s and one.learners != learners]
    stays = [one for one in before if one.pid == first.pid]
    if not stays:  # torchrun restarts them; else the first step of a newcomer counts like one that stays
        stayed = [one for one in steps if one.at_s > first.at_s and one.learners == learners]
        known = {one.pid for one in before}
        other = next((one for one in stayed if one.pid in known), None)
        first = other or first
        stays = [one for one in before if other is None or one.pid == first.pid]
    after = [one for one in steps if one.pid == first.pid and one.at_s >= first.at_s and one.learners == learners]
    usual_s = statistics.median(b.at_s - a.at_s for a, b in itertools.pairwise(after))
    redone = max(0, max(one.number for one in stays) + 1 - first.number)
    return max(0.0, first.at_s - stays[-1].at_s - usual_s), first.at_s - since_s, redone


# -- ours --------------------------------------------------------------------------------------------------------------


def _submit(bench: Bench, source: str, name: str, *, learners: str, start_with: int) -> tuple[Job, Path]:
    out = bench.site.folder / f"steps-{name}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    variables = {"BENCH_OUT": str(out)} | VARIABLES
    options = {"framework": "torch", "env": variables, "name": name}
    return bench.site.submit(source, learners=learners, start_with=start_with, **options), out


def _is_warm(bench: Bench) -> bool:
    return bench.site.client.warm(sys.executable, option_parsing.without_jupyter(os.environ) | VARIABLES, "torch")


def _ours(bench: Bench, source: str, name: str, trials: int, *, kills: bool = True) -> Found:
    job, out = _submit(bench, source, name, learners="1:2", start_with=1)
    found, settle = Found(), SETTLE_STEPS if kills else 8
    try:
        _reached(out, 1, 0.0, settle)
        for size in [2, 1] * trials:
            began_s = time.monotonic()
            job.scale(size)
            found.acknowledged_s.append(time.monotonic() - began_s)
            pause_s, effective_s, redone = _gap(_reached(out, size, began_s, settle), began_s, size)
            found.pause_s.append(pause_s)
            found.effective_s.append(effective_s)
            found.redone.append(redone)
        if kills:
            job.scale(2)
            _kills(bench, job, out, trials, found)
    finally:
        job.cancel()
    return found


def _kills(bench: Bench, job: Job, out: Path, trials: int, found: Found) -> None:
    for trial in range(trials):
        began_s = time.monotonic()
        _reached(out, 2, began_s)
        until(lambda: len(bench.site.learners(job)) == 2, "both learners are there")
        living = bench.site.learners(job)
        victim = living[sorted(living)[trial % 2]]
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        after = [one for one in _reached(out, 1, killed_s, 1) if one.pid != victim]
        first = next(one for one in after if one.at_s > killed_s and one.learners == 1)
        before = max(one.number for one in after if one.at_s < first.at_s)
        found.after_kill_s.append(first.at_s - killed_s)
        found.redone_after_kill.append(max(0, before + 1 - first.number))


def _ms(values: list[float]) -> Figure:
    return figure([1000 * value for value in values], "ms")


def _by_kind(values: list[float]) -> list[Line]:
    """Return a line for the changes that add a learner, and one for those that take it away again."""
    joins, leaves = _ms(values[::2]), _ms(values[1::2])
    return [
        Line(what="… where a learner joins", bar="", measured=joins),
        Line(what="… where a learner leaves", bar="", measured=leaves),
    ]


def _changes(ours: Found, cold: Found) -> list[Line]:
    return [
        Line(what="pause at a planned change", bar="median ≤ 100 ms, max ≤ 500 ms", measured=_ms(ours.pause_s)),
        *_by_kind(ours.pause_s),
        Line(what="… steps redone", bar="0", measured=figure(ours.redone, "steps")),
        Line(what="scale asked → acknowledged", bar="≤ 200 ms", measured=_ms(ours.acknowledged_s)),
        Line(
            what="scale asked → first step at the new size",
            bar="≤ 1 s",
            measured=_ms(ours.effective_s),
            beside="(Ray considers a resize each 60 s); "
            f"growth of a job that was started cold {1000 * cold.effective_s[0]:.0f} ms",
        ),
        *_by_kind(ours.effective_s),
        Line(what="kill -9 of a learner → next step", bar="≤ 500 ms", measured=_ms(ours.after_kill_s)),
        Line(what="… completed steps redone", bar="0", measured=figure(ours.redone_after_kill, "steps")),
    ]


# -- peers -------------------------------------------------------------------------------------------------------------


def _beside(bench: Bench, ours: Found, open_peer: Callable[[Path], object]) -> list[Line]:
    name = open_peer.__name__
    try:
        theirs, who = _peer(bench, open_peer)
    except Unmeasurable as error:
        return [not_measured(f"beside {name}", "", str(error))]
    is_torchrun = name == "torchrun"
    rows = [
        ("pause at a planned change", "≤ 1/50" if is_torchrun else "", ours.pause_s, theirs.pause_s),
        ("asked → first step at the new size", "", ours.effective_s, theirs.effective_s),
        ("kill -9 → next step", "≤ 1/10" if is_torchrun else "≤ 1/2", ours.after_kill_s, theirs.after_kill_s),
    ]
    lines = [
        Line(what=what, bar=bar, measured=_ms(us), beside=who, beside_figure=_ms(them), times=ratio(_ms(us), _ms(them)))
        for what, bar, us, them in rows
    ]
    redone = figure([*theirs.redone, *theirs.redone_after_kill], "steps")
    return [
        *lines,
        Line(what="steps redone", bar="0", measured=figure(ours.redone, "steps"), beside=who, beside_figure=redone),
    ]


def _peer(bench: Bench, open_peer: Callable[[Path], object]) -> tuple[Found, str]:
    found = Found()
    with open_peer(bench.site.folder / open_peer.__name__) as peer:  # type: ignore[attr-defined]  # both are context managers
        assert isinstance(peer, Peer)
        agent = peer.add()
        _reached(peer.out, 1, 0.0)
        for trial in range(min(TRIALS_OF_PEERS, bench.runs) * 2):
            for size in (2, 1):
                began_s = time.monotonic()
                is_kill = size == 1 and trial % 2 == 1
                if size == 2:
                    agent = peer.add()
                elif is_kill:
                    _kill_last(peer)
                else:
                    peer.remove(agent)
                steps = _reached(peer.out, size, began_s)
                pause_s, effective_s, redone = _gap(steps, began_s, size)
                if is_kill:
                    found.after_kill_s.append(effective_s)
                    found.redone_after_kill.append(redone)
                    continue
                found.pause_s.append(pause_s)
                found.effective_s.append(effective_s)
                found.redone.append(redone)
        return found, peer.name


def _kill_last(peer: Peer) -> None:
    """Kill the newest agent with its learner, as when a machine is lost."""
    agent = peer.agents[-1].pid
    for pid in (agent, *(int(path.stem) for path in peer.out.glob("*.steps") if _parent(int(path.stem)) == agent)):
        os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int | None:
    stat = stat_of(pid)
    return None if stat is None else stat.parent


# -- while nothing changes, with a large state, and over a halt --------------------------------------------------------


def _overhead(bench: Bench) -> list[Line]:
    """Milliseconds a step, as a script and as a job that could change at any moment."""
    lines, script = [], bench.script(PLAIN)
    for learners, who in ((1, "python script.py"), (2, "torchrun, plain DDP")):
        theirs, ours = in_turn(
            max(5, bench.runs // 2),
            partial(_plain_step, bench, script, learners),
            partial(_job_step, bench, learners),
        )
        us, them = figure(ours, "ms"), figure(theirs, "ms")
        added = us.median - them.median
        said = (
            f"{'one learner' if learners == 1 else 'two learners'}: {added:+.2f} ms, {100 * added / them.median:+.1f} %"
        )
        lines.append(
            Line(
                what=f"a step while nothing changes, {said}",
                bar="≤ max(2 %, 0.1 ms); torchft (+48 %)",
                measured=us,
                beside=who,
                beside_figure=them,
                times=ratio(us, them),
            )
        )
    return lines


def _mean_step_ms(steps: list[Step]) -> float:
    mine = [one.at_s for one in steps if one.pid == steps[0].pid][SETTLE_STEPS:]
    return 1000 * (mine[-1] - mine[0]) / (len(mine) - 1)


def _plain_step(bench: Bench, script: Path, learners: int) -> float:
    command = [sys.executable, str(script)]
    if learners > 1:
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={learners}"]
    out = bench.site.folder / "steps-plain"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    variables = os.environ | {"OMP_NUM_THREADS": "1", "BENCH_OUT": str(out)}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=variables, timeout=180)
    if ended.returncode:
        raise Unmeasurable(f"{' '.join(command[1:])} ended with {ended.returncode}: {ended.stderr[-1500:]}")
    return _mean_step_ms(_steps(out))


def _job_step(bench: Bench, learners: int) -> float:
    job, out = _submit(bench, OURS, f"still-{learners}", learners="1:2", start_with=learners)
    lines = learners * (STEPS + SETTLE_STEPS)
    try:
        # Reading them all the time would take from those who are measured.
        until(lambda: sum(path.stat().st_size for path in out.glob("*.steps")) > lines * LINE_BYTES, "they made steps")
        return _mean_step_ms(_reached(out, learners, 0.0, lines))
    finally:
        job.cancel()
        until(lambda: not bench.site.learners(job), "its learners are gone")


def _big(bench: Bench, small: Found) -> list[Line]:
    found = _ours(bench, BIG, "big", 3, kills=False)
    joins = found.pause_s[::2]
    extra = [pause_s - statistics.median(small.pause_s) for pause_s in joins]
    return [Line(what="a state of 200 MB, join: extra pause", bar="≤ 700 ms", measured=_ms(extra))]


def _halts(bench: Bench) -> list[Line]:
    job, out = _submit(bench, OURS, "halts", learners="1:2", start_with=2)
    halts: list[float] = []
    resumes: list[float] = []
    try:
        _reached(out, 2, 0.0)
        for _ in range(max(3, bench.runs)):
            began_s = time.monotonic()
            job.halt()
            until(lambda: not bench.site.learners(job), "its learners are gone")
            halts.append(time.monotonic() - began_s)
            until(lambda: job.view.state == "HALTED", "it is halted")
            began_s = time.monotonic()
            job.resume()
            steps = _reached(out, 2, began_s)
            resumes.append(next(one.at_s for one in steps if one.at_s > began_s) - began_s)
    finally:
        job.cancel()
    return [
        Line(what="halt → devices free (with its checkpoint)", bar="≤ 1 s + checkpoint", measured=_ms(halts)),
        Line(what="resume → next step", bar="≤ 1 s", measured=_ms(resumes), beside="(Slurm requeue 173 s)"),
    ]
