"""Finding and starting the engine, and what the client does when it dies."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from jupyter_dlaas.client.discovery import (
    ServerEndpoint,
    SocketEndpoint,
    find_endpoints,
    jupyter_endpoint,
    pool_directory,
    pool_endpoint,
)
from jupyter_dlaas.client.follow import Follower, LogLines
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.protocol import Cursor, NotFound, Unavailable
from tests.clients.conftest import FakePool, end, is_gone, make_pool, until


def test_the_first_request_starts_the_engine(pool: FakePool) -> None:
    assert pool.client.pool().name == "lab"
    assert not is_gone(pool.pid())


def test_next_request_restarts_a_killed_engine(pool: FakePool) -> None:
    pool.client.pool()
    killed = pool.kill()

    assert pool.client.job("fake").id == "fake-1"
    assert pool.pid() != killed


def test_a_request_that_the_engine_died_over_is_sent_again(pool: FakePool) -> None:
    pool.client.pool()
    killed = pool.pid()
    (pool.fake / "die").touch()

    assert pool.client.act("fake-1", "halt").id == "fake-1"
    assert pool.pid() != killed
    sent = [one for one in pool.asked() if one["method"] == "POST"]
    assert len(sent) == 2


def test_starters_at_once_end_with_one_engine(pool: FakePool) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(pool.client.pool().name)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert found == ["lab"] * 6
    until(lambda: sum(thread.name == "dlaas-engine-reaper" for thread in threading.enumerate()) == 1)
    assert not is_gone(pool.pid())


def test_a_pool_in_a_deep_folder_has_a_socket_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: FakePool
) -> None:
    deep = make_pool(tmp_path / ("a" * 60) / ("b" * 60) / "pool")
    try:
        assert len(os.fsencode(deep.folder / "engine.sock")) > 107
        assert deep.client.pool().name == "lab"
        before = len(list(Path("/proc/self/fd").iterdir()))
        deep.client.pool()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before
    finally:
        end(deep)


def test_engine_that_cannot_start_prints_the_reason(pool: FakePool) -> None:
    (pool.fake / "refuse").touch()

    with pytest.raises(Unavailable, match="the store was made by a newer version"):
        Client(at=[pool.endpoint]).request("GET", "pool", pauses_s=())


def test_an_engine_is_not_started_where_that_is_not_wanted(pool: FakePool) -> None:
    with pytest.raises(Unavailable, match="no engine is running"):
        pool.client.without_start().request("GET", "pool", pauses_s=())

    assert not (pool.folder / "engine.json").exists()


def test_an_engine_keeps_no_token_of_jupyter(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_TOKEN", "secret-1")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret-2")
    pool.client.pool()

    assert b"secret-" not in Path(f"/proc/{pool.pid()}/environ").read_bytes()


def test_server_of_this_kernel_is_the_first_endpoint(tmp_path: Path) -> None:
    record = {"url": "http://0.0.0.0:8888/user/mia/", "base_url": "/user/mia/", "token": "t", "sock": ""}
    (tmp_path / f"jpserver-{os.getpid()}.json").write_text(json.dumps(record))

    assert jupyter_endpoint(str(os.getpid()), tmp_path) == ServerEndpoint("127.0.0.1", 8888, "/user/mia/", "t")


@pytest.mark.parametrize(
    "record",
    [
        None,
        {"url": "http://localhost:8888/", "token": ""},
        {"url": "", "token": "t"},
        {"url": "http://x:y/", "token": "t"},
    ],
)
def test_a_record_without_token_leads_to_the_socket(
    record: dict[str, str] | None, tmp_path: Path, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if record is not None:
        (tmp_path / f"jpserver-{os.getpid()}.json").write_text(json.dumps(record))
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))

    assert find_endpoints() == (SocketEndpoint(pool.folder, named_by="JUPYTER_DLAAS_POOL"),)
    assert Client().pool().name == "lab"


def test_a_server_that_is_gone_leads_to_the_socket(pool: FakePool) -> None:
    unreachable = ServerEndpoint("127.0.0.1", 9, "/", "t")

    assert Client(at=[unreachable, pool.endpoint]).pool().name == "lab"


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(ServerEndpoint("127.0.0.1", 1, "/", "secret"))


def test_a_pool_is_named_or_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("JUPYTER_DLAAS_POOL", raising=False)
    monkeypatch.delenv("JUPYTER_DLAAS_POOL_DIR", raising=False)

    assert pool_directory() == tmp_path / "dlaas" / "local"
    assert pool_directory("lab") == tmp_path / "dlaas" / "lab"
    assert pool_directory("/srv/lab") == Path("/srv/lab")
    with pytest.raises(Invalid, match="is not a valid pool name"):
        pool_directory("..")


def test_a_user_without_a_home_is_asked_for_a_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_home() -> str:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("jupyter_core.paths.jupyter_data_dir", no_home)
    monkeypatch.delenv("JUPYTER_DLAAS_POOL_DIR", raising=False)
    with pytest.raises(Invalid, match="this user has no home directory: set JUPYTER_DATA_DIR to a directory"):
        pool_directory()
    monkeypatch.setenv("JUPYTER_DLAAS_POOL_DIR", str(tmp_path))
    assert pool_endpoint() == SocketEndpoint(tmp_path)


def test_an_error_of_the_engine_is_raised_as_its_class(pool: FakePool) -> None:
    with pytest.raises(NotFound, match="there is no job absent-1"):
        pool.client.job("absent-1")


def test_bytes_are_uploaded_from_a_file(pool: FakePool, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * 3_000_000)

    assert pool.client.put_blob(large) == pool.client.put_blob(large.read_bytes())


def test_follower_survives_a_killed_engine_without_gap_or_duplicate(pool: FakePool) -> None:
    lines = [f"line {n} äöü €" for n in range(400)]
    pool.write_log("".join(line + "\n" for line in lines[:100]))
    reader, seen = Follower(pool.client, "fake", wait_s=0.5), LogLines()
    got: list[str] = []
    kills = iter((50, 150, 250, 300))
    next_kill, written = next(kills), 100

    for message in reader.messages():
        got += seen.feed(message)
        if len(got) >= next_kill:
            pool.kill()
            next_kill = next(kills, 10_000)
        if len(got) >= written and written < 400:
            pool.write_log("".join(line + "\n" for line in lines[written : written + 100]))
            written += 100
        elif len(got) == 400 and reader.view is not None and not reader.view.state.is_final:
            pool.set_view(state="COMPLETED")

    assert got == lines
    assert reader.cursor.logs == {"0": len("".join(line + "\n" for line in lines).encode())}


def test_follower_continues_at_its_cursor(pool: FakePool) -> None:
    pool.write_log("one\ntwo\n")
    first = Follower(pool.client, "fake-1", wait_s=0.2)
    assert "".join(m["text"] for m in first.once() if m["type"] == "log") == "one\ntwo\n"
    pool.write_log("three\n")
    pool.set_view(state="COMPLETED")

    later = Follower(pool.client, "fake-1", Cursor(row=first.cursor.row, logs=first.cursor.logs), wait_s=0.2)
    assert "".join(m["text"] for m in later.messages() if m["type"] == "log") == "three\n"


def test_messages_that_do_not_continue_the_cursor_are_dropped() -> None:
    class Odd:
        """An engine that sends the same bytes twice, then jumps."""

        def __init__(self) -> None:
            self.batches = [
                [{"type": "log", "member": 0, "from": 0, "to": 2, "text": "a\n"}],
                [{"type": "log", "member": 0, "from": 0, "to": 2, "text": "a\n"}],
                [{"type": "log", "member": 0, "from": 4, "to": 6, "text": "c\n"}],
                [{"type": "log", "member": 0, "from": 2, "to": 4, "text": "b\n"}],
            ]

        def stream(self, *_: object, **__: object) -> tuple[list[dict[str, object]], Cursor]:
            return self.batches.pop(0), Cursor()

    reader = Follower(Odd(), "fake-1")  # type: ignore[arg-type]
    assert [m["text"] for _ in range(4) for m in reader.once()] == ["a\n", "b\n"]


def test_log_skipped_by_a_slow_reader_is_fetched(pool: FakePool) -> None:
    pool.write_log("0123456789\n")
    reader = Follower(pool.client, "fake-1")
    skipped = {"type": "log_skipped", "job": "fake-1", "member": 0, "from": 2, "to": 9}

    assert "".join(m["text"] for m in reader._skipped(skipped)) == "2345678"


def test_lines_of_several_learners_are_marked_and_whole() -> None:
    lines = LogLines(is_marked=True)
    frames = [(0, "a"), (1, "b\n"), (0, "c\r 50%\r100%\nrest")]

    got = [line for member, text in frames for line in lines.feed({"type": "log", "member": member, "text": text})]

    assert got == ["L1  b", "L0  100%"]
    assert list(lines.rest()) == ["L0  rest"]


def test_an_engine_that_ends_leaves_no_zombie(pool: FakePool) -> None:
    pool.client.pool()
    pid = pool.kill()

    until(lambda: not Path(f"/proc/{pid}").exists())
