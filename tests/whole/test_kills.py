"""`kill -9` of every part in mid-training: learners continue, the job is held again, nothing is lost or doubled."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from jupyter_dlaas.client.follow import Follower
from jupyter_dlaas.client.http import Client
from tests.selection import exhaustive
from tests.whole.programs import end_brief
from tests.whole.site import Server, Site, kill, until

# It runs until the file `enough` is in its directory.
TICKS = """
import itertools, pathlib, time
for i in itertools.count():
    print(f"tick {i}", flush=True)
    time.sleep(0.01)
    if pathlib.Path("enough").exists():
        break
print(f"ticked {i + 1}", flush=True)
"""
Build = Callable[..., Site]


def ticks(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"^tick (\d+)$", text, re.M)]


def assert_whole(text: str) -> None:
    [count] = re.findall(r"^ticked (\d+)$", text, re.M)
    assert ticks(text) == list(range(int(count))), "no line lost or doubled"


class Watching(threading.Thread):
    """Thread that follows the job's stream from its start to its end, whatever happens."""

    def __init__(self, follower: Follower) -> None:
        super().__init__(daemon=True)
        self.follower = follower
        self.text = ""
        self.states: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for message in self.follower.messages():
                if message["type"] == "log":
                    self.text += message["text"]
                if message["type"] == "job":
                    self.states.append(message["job"]["state"])
        except BaseException as error:  # noqa: BLE001 - the test asserts that there is none
            self.error = error


def watched_job(site: Site, server: Server) -> tuple[str, Watching, dict[int, int]]:
    job = site.submit(TICKS, name="ticks", client=server.client)
    watching = Watching(Follower(Client(at=[*server.client.endpoints, *site.client.endpoints]), job.id))
    watching.start()
    until(lambda: len(ticks(watching.text)) > 20, "the job ticks")
    return job.id, watching, site.learners(job)


def ends_well(site: Site, job: str, watching: Watching) -> None:
    there = len(ticks(watching.text))
    until(lambda: watching.error or len(ticks(watching.text)) > there + 50, "it continues")
    (site.work / "enough").touch()
    watching.join(60)
    assert watching.error is None
    assert_whole(watching.text)
    assert watching.states[-1] == "COMPLETED"
    assert site.job(job).view.restarts == 0
    until(lambda: not site.orphans(), "no process of the job is left", 10)


@exhaustive  # the one below kills it, too
def test_a_killed_jupyter_server_is_no_event_for_the_job(site: Build) -> None:
    here = site()
    server = here.serve(program="jupyter_server")
    job, watching, learners = watched_job(here, server)

    server.kill()
    again = here.serve(program="jupyter_server")

    assert again.client.job(job).state == "PROCESSING"
    assert here.learners(job) == learners
    ends_well(here, job, watching)


def test_killed_engine_is_restarted_on_demand_with_the_same_job(site: Build) -> None:
    here = site()
    server = here.serve(program="jupyter_server")
    job, watching, learners = watched_job(here, server)

    kill(here.engine_pid())
    assert server.client.job(job).state == "PROCESSING"

    assert here.learners(job) == learners
    ends_well(here, job, watching)


def test_both_servers_killed_and_the_learner_never_notices(site: Build) -> None:
    here = site()
    server = here.serve(program="jupyter_server")
    job, watching, learners = watched_job(here, server)

    server.kill()
    kill(here.engine_pid())
    again = here.serve(program="jupyter_server")
    assert again.client.job(job).state == "PROCESSING"

    assert here.learners(job) == learners
    ends_well(here, job, watching)


def test_killed_guardian_is_replaced_and_the_learner_continues(site: Build) -> None:
    here = site()
    job = here.submit(TICKS, name="ticks")
    until(lambda: job.status == "PROCESSING", "it runs")
    learners, guardian = here.learners(job), here.guardian_pid(job)

    kill(guardian)
    until(lambda: here.guardian_pid(job) != guardian, "another guardian holds it")

    assert here.learners(job) == learners
    there = len(ticks(job.logs()))
    until(lambda: len(ticks(job.logs())) > there + 50, "it continues")
    end_brief(here, job)
    assert_whole(job.logs())
    assert "took over" in job.events()
    until(lambda: not here.orphans(), "no process of the job is left", 10)


def test_job_restarts_after_all_its_processes_and_the_engine_died(site: Build) -> None:
    here = site()
    job = here.submit(TICKS, name="ticks", retries=3)
    until(lambda: job.status == "PROCESSING", "it runs")
    engine, guardian, [first] = here.engine_pid(), here.guardian_pid(job), here.learners(job).values()

    for pid in (engine, guardian, first):
        kill(pid)
    until(lambda: [pid for pid in here.learners(job).values() if pid != first], "it trains again, and no client asks")

    assert here.engine_pid() != engine
    end_brief(here, job)
    assert job.status == "COMPLETED"
    until(lambda: not here.orphans(), "no process of the job is left", 10)


def test_a_killed_learner_is_replaced_and_the_cause_is_shown(site: Build) -> None:
    here = site()
    job = here.submit(TICKS, name="ticks")
    until(lambda: job.status == "PROCESSING", "it runs")
    [first] = here.learners(job).values()

    kill(first)
    end_brief(here, job)

    assert job.view.restarts == 1
    assert "killed" in job.events()
    assert job.status == "COMPLETED"
    until(lambda: not here.orphans(), "no process of the job is left", 10)


def test_a_cancelled_job_leaves_no_process_though_it_hides_some(site: Build) -> None:
    here = site()
    hider = "import subprocess, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)\n"
    job = here.submit(hider, name="hider")
    until(lambda: len(here.orphans()) >= 3, "guardian, learner and what it hid run")

    job.cancel()
    job.wait(30, raise_on_failure=False)

    assert job.status == "CANCELLED"
    until(lambda: not here.orphans(), "no process of the job is left", 10)
