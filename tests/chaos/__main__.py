"""`python -m tests.chaos`: random faults in a real pool, then a check of what its files and its API say.

Engine, guardians, learners, rendezvous stores, zygotes and Jupyter server are killed or stopped, alone and together,
while jobs of four kinds train: a plain program, a loop of one learner, one that grows and shrinks, a gang of fixed
size. In the end each job must have completed with the result of an undisturbed run, no log line lost or doubled, each
step counted once, no device held by two jobs at any moment, and no process left. Ends with 1 where anything of this
does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from tests.chaos.faults import clicks, inject
from tests.chaos.history import Ended, devices_held_twice, of_end, of_lines, of_steps
from tests.chaos.pool import API_ERRORS, FINAL, ChaosPool, wait_for_state
from tests.chaos.programs import KINDS, STEPS, TICKS, Kind, undisturbed
from tests.whole.site import Site, until

SLOTS = 6
JOBS_AT_ONCE = 4
END_S = 240.0
LEFT_S = 60.0


class Watch(threading.Thread):
    """Looks again and again which living learners were given which devices."""

    def __init__(self, pool: ChaosPool) -> None:
        super().__init__(daemon=True)
        self._pool = pool
        self._given: dict[tuple[str, str], str] = {}
        self.found: list[str] = []
        self.looks = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.05):
            holders: dict[str, list[str]] = {}
            for job in [one.name for one in (self._pool.site.pool / "jobs").glob("*")]:
                for member in self._living(job):
                    if (job, member) in self._given:
                        holders.setdefault(self._given[job, member], []).append(job)
            self.looks += 1
            self.found += [one for one in devices_held_twice(holders) if one not in self.found]

    def _living(self, job: str) -> list[str]:
        with suppress(OSError, ValueError):
            wanted = json.loads((self._pool.folder(job) / "wanted.json").read_text())
            for one in wanted["members"]:
                self._given[job, str(one["member"])] = f"{one['node']}/{'+'.join(one['devices'])}"
        living = set(self._pool.learner_pids(job))
        return [m for m, one in self._pool.status(job).get("learners", {}).items() if one["pid"] in living]


SERVER_STARTS_S = 180.0
"""Time for a Jupyter server to start beside other runs of this command."""


def chaos(folder: Path, kills: int, seed: int, *, with_server: bool) -> list[str]:
    """Run it; the violations."""
    chance = random.Random(seed)
    site = Site(folder / "site", slots=SLOTS)
    (folder / "reference").mkdir()
    reference = undisturbed(folder / "reference")
    pool = ChaosPool(site)
    watch = Watch(pool)
    try:
        if with_server:
            site.serve(program="jupyter_server", deadline_s=SERVER_STARTS_S)
        jobs: dict[str, Kind] = {}
        done: Counter[str] = Counter()
        watch.start()
        while sum(done.values()) < kills:
            running = [job for job in jobs if pool.view(job)["state"] not in FINAL]
            while len(running) < JOBS_AT_ONCE:
                kind = KINDS[len(jobs) % len(KINDS)]
                job = pool.submit(kind.source, kind.name, kind.learners, **kind.spec)
                jobs[job] = kind
                running.append(job)
            time.sleep(chance.uniform(0.1, 1.0))
            if chance.random() < 0.2 and (clicked := clicks(pool, chance.choice(running), chance)):
                print(f"      {clicked}", flush=True)
            if with_server and not any(one.poll() is None for one in site.servers):
                site.serve(program="jupyter_server", deadline_s=SERVER_STARTS_S)
            if hit := inject(pool, chance.choice(running), chance):
                done[hit.partition(" of ")[0] + (" stopped" if "stopped" in hit else "")] += 1
                print(f"{sum(done.values()):4}  {hit}", flush=True)
        found = _at_the_end(pool, jobs, reference)
        if with_server:
            found += _missing_from_server(site, jobs)
        watch.ended.set()
        watch.join()
        print(f"\n{len(jobs)} jobs, {sum(done.values())} faults: {dict(done.most_common())}")
        print(f"devices looked at {watch.looks} times")
        return [*watch.found, *found]
    finally:
        watch.ended.set()
        pool.close()


def _at_the_end(pool: ChaosPool, jobs: dict[str, Kind], reference: dict[str, object]) -> list[str]:
    found: list[str] = []
    for job, kind in jobs.items():
        try:
            _resume_if_halted(pool, job)
            view = wait_for_state(pool, job, FINAL, END_S)
        except AssertionError:
            view = pool.view(job)
            found.append(f"{job} did not end: {view['state_label']}: {view['reason']}")
            continue
        end = pool.folder(job) / "output" / "end.json"
        ended = Ended(
            job=job,
            kind=kind.name,
            state=view["state"],
            reason=view["reason"],
            facts=pool.journal(job),
            logs=[pool.log(job, member) for member in pool.members(job)],
            end=json.loads(end.read_text()) if end.exists() else None,
        )
        violations = of_end(ended) + (of_steps(ended, STEPS, reference) if kind.is_loop else of_lines(ended, TICKS))
        if violations:
            _print_record(pool, job, ended, view["failure"])
        found += violations
    try:
        until(lambda: not pool.site.orphans(), "no process of a job is left", LEFT_S)
    except AssertionError:
        found += [f"left behind: {one}" for one in pool.site.orphans()]
    listed = {one["id"] for one in pool.patient("GET", "/dlaas/jobs?limit=10000")["jobs"]}
    found += [f"{job} was accepted and is not known any more" for job in jobs if job not in listed]
    if held := pool.holders():
        found.append(f"devices of ended jobs are still held: {held}")
    return found


def _print_record(pool: ChaosPool, job: str, ended: Ended, failure: object) -> None:
    """Print what a job left, from which a violation can be explained after the pool is gone."""
    print(f"\nrecord of {job}: failure {failure}")
    for fact in ended.facts:
        if fact["kind"] not in ("committed", "checkpoint", "seen"):
            print(f"  {fact}")
    for path in [pool.folder(job) / "guardian.log", *sorted(pool.folder(job).glob("learner-*/stdout.log"))]:
        with suppress(OSError):
            print(f"  {path.parent.name}/{path.name}: {path.read_text(errors='replace')[-1500:]}")


def _missing_from_server(site: Site, jobs: Collection[str]) -> list[str]:
    """Return the jobs that a Jupyter server, started after all faults, does not list."""
    listed = {
        one.id for one in site.serve(program="jupyter_server", deadline_s=SERVER_STARTS_S).client.jobs(limit=10000)
    }
    return [f"{job} is not listed by the Jupyter server" for job in jobs if job not in listed]


def _resume_if_halted(pool: ChaosPool, job: str) -> None:
    """Resume it: a halt of ours may have arrived without the resume that followed it."""
    for _ in range(3):
        view = pool.view(job)
        if view["transition"] == "halting":
            wait_for_state(pool, job, ("HALTED", *FINAL), END_S)
        elif view["state"] == "HALTED":
            with suppress(*API_ERRORS):
                pool.request("POST", f"/dlaas/jobs/{job}/resume", {})
        else:
            return


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many faults (200)")
    parser.add_argument("--seed", type=int, default=None, help="replay the choices of a run")
    parser.add_argument("--no-server", action="store_true", help="without a Jupyter server")
    options = parser.parse_args(argv)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    began_s = time.monotonic()
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        found = chaos(Path(folder), options.kills, seed, with_server=not options.no_server)
        for one in found:
            print(f"BROKEN  {one}")
    print(f"{'BROKEN' if found else 'all held'}: seed {seed}, {time.monotonic() - began_s:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
