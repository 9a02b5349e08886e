"""Learners of a gang that fetch what they need: one of them first, the others after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from textwrap import dedent

import pytest

from jupyter_dlaas.wire.journal import FactKind
from tests.runtime.jobs import Job, until

Build = Callable[..., Job]


@dataclass
class Server:
    """Serves one file, and counts who fetches it at the same time."""

    url: str = ""
    begun: int = 0
    now: int = 0
    at_once: int = 0
    stalls: threading.Event = field(default_factory=threading.Event)
    """Answers wait while this is not set."""


@contextmanager
def serving() -> Iterator[Server]:
    one, lock = Server(), threading.Lock()
    one.stalls.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with lock:
                one.begun += 1
                one.now += 1
                one.at_once = max(one.at_once, one.now)
            self.send_response(200)
            self.end_headers()
            for _ in range(20):
                one.stalls.wait(60)
                time.sleep(0.005)  # long enough that the others would come, if they might
                try:
                    self.wfile.write(b"7" * 500)
                except OSError:  # who asked was killed
                    break
            with lock:
                one.now -= 1

        def log_message(self, *_: object) -> None:
            """Nothing: the test's output is not the server's log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        one.url = f"http://127.0.0.1:{server.server_port}/data.bin"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.stalls.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as one:
        yield one


HEAD = """
from __future__ import annotations
import os, pathlib, time, urllib.request
out = pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output"
me = os.environ["DLAAS_MEMBER"]
def note(what):
    with open(out / f"notes-{me}", "a") as file:
        file.write(f"{what} {time.time()}\\n")
note("begins")
"""
TAIL = """
note("ends")
if __name__ == "__main__":
    note("trains")
    size = len(data)
    (out / f"size-{me}").write_text(str(size))
"""
CACHED = """
path = out / "data.bin"
if not path.exists():
    (out / f"fetched-{me}").touch()
    urllib.request.urlretrieve("URL", path)
data = path.read_bytes()
"""
ALWAYS = """
with urllib.request.urlopen("URL") as answer:
    data = answer.read()
"""


def program(body: str, server: Server | None = None, tail: str = TAIL) -> str:
    return HEAD + dedent(body).replace("URL", server.url if server else "") + tail


def notebook(job: Build, source: str, **more: object) -> Job:
    """Create a job as `%%train` does: it knows the cells of its lines."""
    return job(source, cells={f"1-{source.count(chr(10))}": "cell [1]:1"}, **more)


def times(job: Job, member: int) -> dict[str, float]:
    found = (line.split() for line in job.lines(f"notes-{member}"))
    return {what: float(at_s) for what, at_s in found}


@pytest.mark.parametrize("learners", [2, 4])
def test_a_download_is_made_once_and_found_by_the_others(job: Build, server: Server, learners: int) -> None:
    one = notebook(job, program(CACHED, server))
    one.run(learners)

    assert one.closed() == "completed", one.report()
    assert (server.begun, server.at_once) == (1, 1)
    assert [m for m in range(learners) if one.output(f"fetched-{m}").exists()] == [0]
    assert {one.output(f"size-{m}").read_text() for m in range(learners)} == {"10000"}


@pytest.mark.parametrize("learners", [2, 4])
def test_downloads_of_learners_never_run_concurrently(job: Build, server: Server, learners: int) -> None:
    one = notebook(job, program(ALWAYS, server))
    one.run(learners)

    assert one.closed() == "completed", one.report()
    assert (server.begun, server.at_once) == (learners, 1)


def test_download_by_a_child_process_counts_as_download(job: Build, server: Server) -> None:
    fetch = """
    import subprocess, sys
    code = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1]).read().decode())"
    data = subprocess.run([sys.executable, "-c", code, "URL"], capture_output=True, check=True).stdout
    """
    one = notebook(job, program(fetch, server))
    one.run(3)

    assert one.closed() == "completed", one.report()
    assert (server.begun, server.at_once) == (3, 1)


def test_first_prelude_runs_alone_then_others_together(job: Build) -> None:
    meet = """
    data = b""
    deadline = time.monotonic() + 60
    while me != "0" and len(list(out.glob("notes-*"))) < 3:
        assert time.monotonic() < deadline, "the other one does not come"
        time.sleep(0.005)
    """
    one = notebook(job, program(meet))
    one.run(3)

    assert one.closed() == "completed", one.report()
    assert all(times(one, member)["begins"] >= times(one, 0)["ends"] for member in (1, 2))


def test_next_prelude_continues_after_the_first_is_killed(job: Build, server: Server) -> None:
    server.stalls.clear()
    one = notebook(job, program(CACHED, server))
    one.run(2)
    until(lambda: server.begun, "the first learner fetches")
    assert one.lines("notes-1") == []

    one.kill_learner(0)
    server.stalls.set()
    one.wait(FactKind.LOST)
    one.output("data.bin").unlink(missing_ok=True)  # half a file, as any killed download leaves
    one.run(2)

    assert one.closed() == "completed", one.report()
    assert server.at_once <= 2, "the answer to the killed one may still be on its way"
    assert [one.output(f"size-{m}").read_text() for m in (2, 3)] == ["10000", "10000"]
    assert not one.output("fetched-3").exists()


def test_a_learner_that_waits_for_its_turn_can_be_halted(job: Build, server: Server) -> None:
    server.stalls.clear()
    one = notebook(job, program(CACHED, server))
    one.run(2)
    until(lambda: server.begun, "the first learner fetches")
    one.wait(FactKind.LEARNER_READY, 2)

    one.halt()

    assert one.closed() == "halted", one.report()


def test_an_error_in_the_prelude_names_its_cell(job: Build) -> None:
    source = program("data = 1 / 0")
    line = source.splitlines().index("data = 1 / 0") + 1
    one = job(source, cells={f"{line}-{line}": "cell [4]:9"})
    one.run(2)

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None
    assert failure.where is not None
    assert (failure.what, failure.where.label, failure.where.line) == (
        "ZeroDivisionError: division by zero",
        "cell [4]",
        9,
    )


def test_scripts_and_single_learners_have_no_prelude_turns(job: Build, server: Server) -> None:
    server.stalls.clear()
    script = job(program(ALWAYS, server))
    script.run(2)
    until(lambda: server.now == 2, "both fetch at once, as the script says")
    server.stalls.set()
    assert script.closed() == "completed", script.report()

    alone = notebook(job, program(CACHED, server))
    alone.run(1)
    assert alone.closed() == "completed", alone.report()
    assert not (alone.dir / "prelude.lock").exists()


def test_collectives_in_the_prelude_do_not_deadlock(job: Build) -> None:
    meet = """
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    data = bytes(int(total.item()))
    """
    one = notebook(job, program(meet), framework="torch")
    one.run(2)

    assert one.closed(deadline_s=90.0) == "completed", one.report()
    assert [one.output(f"size-{m}").read_text() for m in (0, 1)] == ["3", "3"]


def test_children_of_the_first_learner_do_not_block_others(job: Build) -> None:
    linger = """
    data = b""
    if os.fork() == 0:
        signal.pause()
    """
    one = notebook(job, program("import signal\n" + dedent(linger)))
    one.run(2)

    assert one.closed() == "completed", one.report()


def test_names_and_futures_are_as_in_a_whole_program(job: Build) -> None:
    body = """
    data = b"1"
    def later(x: NotThere) -> None:
        return data + other
    other = b"2"
    assert later(None) == b"12"
    assert later.__annotations__["x"] == "NotThere"
    """
    tail = '\nif __name__ == "__main__":\n    def inner(x: NorThis): ...\n    note(later(None).decode())\n'
    one = notebook(job, program(body, tail=tail))
    one.run(2)

    assert one.closed() == "completed", one.report()


def test_the_guardian_may_die_while_learners_take_turns(job: Build, server: Server) -> None:
    server.stalls.clear()
    one = notebook(job, program(CACHED, server))
    one.run(2)
    until(lambda: server.begun, "the first learner fetches")
    one.kill_guardian()
    one.start_guardian()
    server.stalls.set()

    assert one.closed() == "completed", one.report()
    assert (server.begun, server.at_once) == (1, 1)
