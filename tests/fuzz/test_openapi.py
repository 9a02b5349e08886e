"""The REST API against its own description: a real engine, requests that no client would send, and never a 5xx.

`FUZZ_SEED=1234 pytest tests/fuzz` replays a run, `FUZZ_EXAMPLES=1000` makes it longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import websocket
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from dlaas_server.rest.routes import describe
from jupyter_dlaas.client import discovery, engine_control
from jupyter_dlaas.client.discovery import SocketEndpoint
from jupyter_dlaas.client.http import Client, new_key
from jupyter_dlaas.runtime.system.process import marked
from jupyter_dlaas.runtime.zygote.start_guardian import stop_zygotes
from jupyter_dlaas.wire.protocol import ERRORS, Cursor, JobSpec, State, Submit
from tests.fuzz.asking import Line, complaint, error_complaint
from tests.fuzz.requests import BODIES, JUNK, Operation, Request, operations, requests, wrong_methods

SEED = int(os.environ.get("FUZZ_SEED") or secrets.randbelow(2**32))
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES") or 50)
DESCRIPTION: dict[str, Any] = describe()
OPERATIONS = {one.id: one for one in operations(DESCRIPTION)}
ENDING = ("cancel_job", "delete_job")
"""Operations that take jobs of their own, so that the others have some left."""


RULED = ("submit_job", "warm")
"""Operations with rules outside their schemas: between fields, and for names of variables."""
EMPTYING = ("cordon_node", "drain_node")
"""Operations that would take the only node from the jobs of the others."""


@dataclass
class Pool:
    """A real engine with some jobs in it."""

    folder: Path
    client: Client = field(repr=False)
    line: Line = field(repr=False)
    known: dict[str, list[str]] = field(repr=False)
    victims: list[str] = field(repr=False)

    def known_to(self, operation: Operation) -> dict[str, list[str]]:
        """Return the names that this operation may take: those that it would end are of spare jobs."""
        if operation.id in EMPTYING:
            return self.known | {"node": ["nowhere"]}
        return self.known | {"id": self.victims} if operation.id in ENDING else self.known

    def stream(self) -> websocket.WebSocket:
        """Open the WebSocket of a page."""
        one = discovery.connect_unix(self.folder / discovery.SOCKET, 20.0)
        return websocket.create_connection("ws://localhost/dlaas/stream", socket=one, timeout=20)


def until(holds: Callable[[], object], what: str, deadline_s: float = 60.0) -> None:
    """Wait for something that other processes do."""
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.01)


def submit(client: Client, name: str, source: str, **spec: Any) -> str:
    request = Submit(key=new_key(), spec=JobSpec(name=name, **spec), source=source, environment=dict(os.environ))
    return client.submit(request).id


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("fuzz") / "pool"
    folder.mkdir()
    (folder / "config.toml").write_text("[pool]\ncpu_slots = 8\n")
    client = Client(at=[SocketEndpoint(folder)])
    print(f"\nFUZZ_SEED={SEED}")
    ready = "print('ready', flush=True)\n"
    runs = submit(client, "runs", f"import signal\n{ready}signal.pause()\n")
    waits = submit(client, "waits", "pass\n", learners_min=8, learners_max=8)
    ended = submit(client, "ended", "answer = {'a': 1}\nprint('é' * 1000)\n", outputs=("answer",))
    until(lambda: client.job(ended).state is State.COMPLETED, "the short job is through")
    until(lambda: "ready" in client.log(runs)["text"], "the long job runs")
    first = client.artifacts(ended)
    known = {
        "id": [runs, waits, ended, "runs", "ended", "waits"],
        "name": ["answer", "model"],
        "path": [one["path"] for one in first] + ["output/none.txt", "results/answer.bin"],
        "sha256": ["0" * 64],
        "node": [client.pool().nodes[0].name, "nowhere"],
        "queue": ["default", "research"],
    }
    victims = [submit(client, "victim", "pass\n", learners_max=n) for n in (1, 2)]
    made = Pool(folder, client, Line(folder), known, [*victims, "victim"])
    try:
        yield made
    finally:
        made.line.close()
        end(made)
    assert not list(marked_below(folder)), "a process of a job outlived its cancelling"


def marked_below(folder: Path) -> Iterator[int]:
    for job in sorted((folder / "jobs").iterdir()):
        yield from (who.pid for who, _ in marked(str(job)))


def end(made: Pool) -> None:
    """Cancel all jobs, wait for their processes, end the engine."""
    for view in made.client.jobs(limit=10_000):
        if not view.state.is_final:
            made.client.act(view.id, "cancel")
    until(lambda: not list(marked_below(made.folder)), "no process of any job is left")
    assert engine_control.stop(made.folder) is not None
    stop_zygotes(made.folder / "zygotes")


def fuzz(examples: int = EXAMPLES) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Every test of this module: seeded, without a data base, as many examples as asked for."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        # The server keeps state, so an example may not fail again when it is shrunk: it is reported as it was.
        chosen = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        )
        return seed(SEED)(chosen(test))

    return decorate


@pytest.mark.parametrize("name", OPERATIONS)
@fuzz()
@given(data=st.data())
def test_every_answer_is_one_that_the_description_promises(pool: Pool, name: str, data: st.DataObject) -> None:
    operation = OPERATIONS[name]
    request = data.draw(requests(operation, DESCRIPTION, pool.known_to(operation)))
    answer = pool.line.ask(request)
    wrong = complaint(operation, DESCRIPTION, answer)
    if wrong is None and request.is_valid and answer.status == 400 and operation.id not in RULED:
        wrong = f"refused, though the description allows it: {answer.body!r}"
    assert wrong is None, f"{wrong}\n{request}\nFUZZ_SEED={SEED}"


FOUND: dict[str, dict[str, Any]] = {
    # What was taken in once and could never run, or broke something.
    "half a character in a name": {"environment": {"\ud800": "x"}},
    "a zero byte in a name": {"environment": {"A\0": "x"}},
    "a zero byte in a value": {"environment": {"A": "x\0"}},
    "a variable without a name": {"environment": {"": "x"}},
    "half a character in the line map": {"spec": {"cells": {"\ud800": "cell [1]:1"}}},
    "a name that no file system takes": {"files": [{"path": "files/" + "a" * 300, "text": ""}]},
    "a file where a folder is needed": {"files": [{"path": "files/a", "text": ""}, {"path": "files/a/b", "text": ""}]},
}


@pytest.mark.parametrize("what", FOUND)
def test_earlier_findings_are_refused(pool: Pool, what: str) -> None:
    body = {"key": new_key(), "spec": {}, "source": "pass\n", **FOUND[what]}
    answer = pool.line.ask(Request("POST", "/dlaas/jobs", json.dumps(body).encode(), {}, is_valid=False))

    assert (answer.status, error_complaint(answer)) == (400, None)


@pytest.mark.parametrize("environment", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}])
def test_an_environment_that_no_process_can_have_is_refused(pool: Pool, environment: dict[str, str]) -> None:
    body = json.dumps({"framework": "torch", "environment": environment}).encode()
    answer = pool.line.ask(Request("POST", "/dlaas/warm", body, {}, is_valid=False))

    assert (answer.status, error_complaint(answer)) == (400, None)


def test_long_poll_returns_only_requested_kinds(pool: Pool) -> None:
    batch, _ = pool.client.stream(pool.known["id"][2], Cursor(), want=["log"], wait_s=0.0)

    assert {message["type"] for message in batch} == {"log"}


def test_unsupported_method_is_refused_as_json(pool: Pool) -> None:
    for method, path in wrong_methods(DESCRIPTION):
        target = path.replace("{id}", pool.known["id"][0]).replace("{name}", "x").replace("{path}", "x/y")
        answer = pool.line.ask(Request(method, target, None, {}, is_valid=False))
        wrong = None if method == "HEAD" else error_complaint(answer)  # an answer to HEAD has no body

        assert (answer.status, wrong) == (405, None), f"{method} {target}"


@fuzz()
@given(path=st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), max_size=40))
def test_any_other_path_is_not_found_in_our_form(pool: Pool, path: str) -> None:
    answer = pool.line.ask(Request("GET", f"/nowhere/{path.replace('#', '')}", None, {}, is_valid=False))

    assert answer.status == 404
    assert error_complaint(answer) is None


FRAMES = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["subscribe", "unsubscribe", "ack", "ping", "subscribe_pool", "unsubscribe_pool", "no", None]
        )
    },
    optional={
        "job": st.sampled_from(["runs", "ended", "none-7", "\ud800", *JUNK[:24]]),
        "cursor": st.sampled_from(
            [{}, {"row": 0, "logs": {"0": 3}}, {"logs": {"x": 1}}, {"logs": {"0": 2**60}}, *JUNK]
        ),
        "want": st.sampled_from([["view"], ["log", "metrics"], ["no"], *JUNK]),
        "bytes": st.sampled_from([1, 2**70, *JUNK]),
    },
).map(json.dumps)


@fuzz()
@given(frames=st.lists(FRAMES | st.sampled_from([b.decode("latin-1") for b in BODIES]), max_size=6))
def test_no_frame_breaks_the_stream(pool: Pool, frames: list[str]) -> None:
    with contextlib.closing(pool.stream()) as stream:
        for frame in frames:
            stream.send(frame)
        stream.send('{"type": "ping"}')

        seen: list[str] = []
        while "heartbeat" not in seen:  # the answer to the ping: everything before it was taken
            message = json.loads(stream.recv())
            seen.append(message["type"])
            if message["type"] == "error":
                assert message["code"] in ERRORS, message
                assert message["code"] != "internal", message


def test_served_description_equals_the_checked_one(pool: Pool) -> None:
    assert pool.client.request("GET", "openapi.json") == DESCRIPTION


def test_engine_still_accepts_work_afterwards(pool: Pool) -> None:
    state = engine_control.state(pool.folder)
    last = submit(pool.client, "last", "print('still here')\n", priority=1_000_000)

    until(lambda: pool.client.job(last).state.is_final, "the last job is through")
    assert pool.client.job(last).state is State.COMPLETED
    assert engine_control.state(pool.folder) == state
