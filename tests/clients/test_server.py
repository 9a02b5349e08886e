"""The Jupyter server's endpoint, in a real jupyter_server under a base URL, before the fake engine."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from dlaas_server.jupyter_extension.relay import Link
from dlaas_server.rest.routes import ROUTES, Endpoint, Route, describe
from jupyter_dlaas.client import discovery
from jupyter_dlaas.client.discovery import SocketEndpoint, find_endpoints
from jupyter_dlaas.client.follow import Follower
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.protocol import JobSpec, NotFound, Submit, Unavailable
from tests.clients.conftest import BASE, TOKEN, FakePool, Server, end, make_pool, start_server, stop_server, until

HERE = Path(__file__).parent


def ask(
    server: Server,
    path: str,
    method: str = "GET",
    token: str | None = TOKEN,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Mapping[str, str], bytes]:
    """One request; any status is an answer."""
    given = {"Content-Type": "application/json", **(headers or {})}
    if token is not None:
        given["Authorization"] = f"token {token}"
    request = urllib.request.Request(server.url + path, data=body, method=method, headers=given)
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def example(route: Route) -> str:
    path = route.path.removeprefix("/")
    for name, value in {"id": "fake-1", "sha256": "0" * 64, "name": "1", "path": "output/a"}.items():
        path = path.replace("{" + name + "}", value)
    return path


PLAIN = [route for route in ROUTES if not route.is_websocket]


@pytest.mark.parametrize("token", [None, "wrong"])
@pytest.mark.parametrize("route", PLAIN, ids=lambda route: route.operation)
def test_no_route_answers_without_the_right_token(route: Route, token: str | None, server: Server) -> None:
    body = None if route.method == "GET" else b"{}"

    status, _headers, said = ask(server, example(route), route.method, token, body)

    assert status in (401, 403), said
    assert server.pool.asked() == []


@pytest.mark.parametrize("token", [None, "wrong"])
def test_the_websocket_is_refused_before_the_upgrade(token: str | None, server: Server) -> None:
    assert upgrade(server, token, None) == 403
    assert server.pool.asked() == []


def test_a_page_of_another_origin_gets_no_websocket(server: Server) -> None:
    assert upgrade(server, None, "http://evil.example", login(server)) == 403
    assert server.pool.asked() == []
    assert upgrade(server, None, server.url.split("/user")[0], login(server)) == 101


def login(server: Server) -> str:
    """Return the cookie that a browser keeps after a login."""
    _status, headers, _ = ask(server, f"api/status?token={TOKEN}", token=None)
    return headers.get("Set-Cookie", "").partition(";")[0]


def upgrade(server: Server, token: str | None, origin: str | None, cookie: str = "") -> int:
    """Return the status that a WebSocket handshake gets."""
    connection = http.client.HTTPConnection(server.endpoint.host, server.endpoint.port, timeout=20)
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    if token is not None:
        headers["Authorization"] = f"token {token}"
    if origin is not None:
        headers["Origin"] = origin
    if cookie:
        headers["Cookie"] = cookie
    try:
        connection.request("GET", f"{BASE}dlaas/stream", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_cookie_alone_may_not_change_anything(server: Server) -> None:
    """XSRF: a page of another origin can make the browser send the cookie, but not the token."""
    cookie = {"Cookie": login(server)}
    assert ask(server, "dlaas/jobs/fake-1", "GET", None, None, cookie)[0] == 200

    status, _, _ = ask(server, "dlaas/jobs/fake-1/halt", "POST", None, b"{}", cookie)

    assert status == 403
    assert [one for one in server.pool.asked() if one["method"] == "POST"] == []


@pytest.mark.parametrize("route", [r for r in PLAIN if r.endpoint is Endpoint.BOTH], ids=lambda route: route.operation)
def test_every_route_reaches_the_engine_unchanged(route: Route, server: Server) -> None:
    body = None if route.method in ("GET", "DELETE") else b'{"a": 1}'

    status, _headers, said = ask(server, example(route) + "?x=%2Fa%20b", route.method, body=body)

    assert status < 500, said
    if route.operation == "describe":
        assert json.loads(said)["servers"] == [{"url": BASE.rstrip("/")}]
        return
    found = [one for one in server.pool.asked() if "/jobs?state=" not in one["uri"]]
    assert [one["uri"] for one in found] == [f"/{example(route)}?x=%2Fa%20b"]
    assert found[0]["method"] == route.method


def test_the_engine_gets_no_secret_and_no_forged_user(server: Server) -> None:
    ask(server, "dlaas/jobs/fake-1", headers={"X-Dlaas-User": "root", "Cookie": "a=b", "X-Dlaas-Protocol": "1"})

    headers = {name.lower(): value for name, value in server.pool.asked()[-1]["headers"].items()}
    assert headers["x-dlaas-protocol"] == "1"
    assert not {"x-dlaas-user", "cookie", "authorization"} & set(headers)


def test_a_hub_server_names_its_user_in_every_request(pool: FakePool) -> None:
    link = Link(pool.endpoint, user="ada")

    async def scene() -> None:
        for method in ("GET", "POST", "DELETE"):
            body = b"{}" if method == "POST" else None
            await link.call(method, "/dlaas/jobs/fake-1", {}, body, timeout_s=20.0)
        await shut(await link.websocket())

    asyncio.run(scene())

    asked = [{name.lower(): value for name, value in one["headers"].items()} for one in pool.asked()[-4:]]
    assert [headers.get("x-dlaas-user") for headers in asked] == ["ada"] * 4


def test_the_token_of_a_link_stays_with_the_server(server: Server) -> None:
    ask(server, f"dlaas/jobs?limit=5&token={TOKEN}&x=%41", token=None)

    assert server.pool.asked()[-1]["uri"] == "/dlaas/jobs?limit=5&x=%41"


def test_the_client_works_through_the_server(server: Server) -> None:
    client = server.client

    assert client.job("fake").id == "fake-1"
    assert client.submit(Submit(key="k" * 8, spec=JobSpec(), source="1\n")).id == "fake-1"
    with pytest.raises(NotFound, match="there is no job absent-1"):
        client.job("absent-1")


def test_an_engine_that_died_is_started_by_the_server(server: Server) -> None:
    server.client.pool()
    killed = server.pool.kill()

    assert ask(server, "dlaas/pool")[0] == 200
    assert server.pool.pid() != killed


def test_a_request_that_the_engine_died_over_is_sent_again(server: Server) -> None:
    server.client.pool()
    (server.pool.fake / "die").touch()

    assert ask(server, "dlaas/jobs/fake-1/halt", "POST", body=b"{}")[0] == 200


def test_job_files_are_never_served_as_pages(server: Server) -> None:
    status, headers, body = ask(server, "dlaas/jobs/fake-1/results/3")

    assert (status, len(body)) == (200, 3 * 2**20)
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Disposition"] == "attachment"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_half_a_result_does_not_look_whole(server: Server) -> None:
    (server.pool.fake / "die-at-30").touch()
    try:
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            ask(server, "dlaas/jobs/fake-1/results/40")
    finally:
        (server.pool.fake / "die-at-30").unlink()


def test_a_large_result_does_not_stay_in_the_server(server: Server) -> None:
    with socket.create_connection((server.endpoint.host, server.endpoint.port), 20) as slow:
        slow.sendall(
            f"GET {BASE}dlaas/jobs/fake-1/results/300 HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: token {TOKEN}\r\n\r\n".encode()
        )
        assert slow.recv(12) == b"HTTP/1.1 200"
        assert ask(server, "dlaas/pool")[0] == 200  # the server continues while the reader is slow
        resident_kb = int(
            next(
                line.split()[1]
                for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
                if line.startswith("VmRSS")
            )
        )
    assert resident_kb < 300_000


def test_a_blob_is_passed_on_as_it_comes(server: Server, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(os.urandom(2**20) * 40)

    sha256 = server.client.put_blob(large)

    assert [one["uri"] for one in server.pool.asked() if one["method"] == "PUT"] == [f"/dlaas/blobs/{sha256}"]


def test_refused_blob_has_a_reason(server: Server) -> None:
    status, _, body = ask(server, "dlaas/blobs/" + "0" * 64, "PUT", body=b"x" * 500_000)

    assert status == 400
    assert json.loads(body)["error"]["code"] == "invalid"


def test_a_body_that_is_too_large_is_refused(server: Server) -> None:
    status, _, body = ask(server, "dlaas/jobs", "POST", body=b" " * (64 * 2**20 + 1))

    assert status == 413
    assert "send files as blobs" in json.loads(body)["error"]["message"]


def test_a_method_that_is_not_in_the_table_is_refused(server: Server) -> None:
    assert ask(server, "dlaas/pool", "DELETE")[0] == 405


def test_the_websocket_passes_frames_both_ways(server: Server) -> None:
    async def talk() -> list[Any]:
        page = await connect(server)
        hello = json.loads(str(await page.read_message()))
        await page.write_message('{"type": "ping"}')
        echo = await page.read_message()
        await shut(page)
        return [hello["type"], echo]

    assert asyncio.run(talk()) == ["hello", '{"type": "ping"}']


async def shut(page: Any) -> None:
    page.close()
    while await page.read_message() is not None:
        pass


async def connect(server: Server) -> Any:
    request = HTTPRequest(
        server.url.replace("http", "ws", 1) + "dlaas/stream", headers={"Authorization": f"token {TOKEN}"}
    )
    return await websocket_connect(request)


def test_the_websocket_closes_when_the_engine_dies_and_opens_again(server: Server) -> None:
    async def talk() -> tuple[int, int, int | None]:
        page = await connect(server)
        first = json.loads(str(await page.read_message()))["engine"]
        server.pool.kill()
        assert await page.read_message() is None
        code = page.close_code
        page.close()
        again = await connect(server)
        second = json.loads(str(await again.read_message()))["engine"]
        await shut(again)
        return first, second, code

    first, second, code = asyncio.run(talk())
    assert first != second
    assert code == 1012


def test_a_closed_page_leaves_nothing_open(server: Server) -> None:
    async def talk() -> None:
        pages = [await connect(server) for _ in range(5)]
        for page in pages:
            await page.read_message()
            await shut(page)

    def count() -> int:
        return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

    before = count()
    for _ in range(4):
        asyncio.run(talk())
    until(lambda: count() <= before + 2)


def test_following_through_the_server_outlives_the_engine(server: Server) -> None:
    lines = [f"line {n}\n" for n in range(300)]
    server.pool.write_log("".join(lines))
    reader, text, kills = Follower(server.client, "fake-1", wait_s=0.5), "", 0
    for message in reader.messages():
        text += message.get("text", "")
        if kills < 2 and len(text) > 700 * (kills + 1):
            kills += 1
            server.pool.kill()
        if text == "".join(lines) and reader.view is not None and not reader.view.state.is_final:
            server.pool.set_view(state="COMPLETED")

    assert (text, kills) == ("".join(lines), 2)


def test_the_description_is_one_and_names_every_route(server: Server) -> None:
    _status, _headers, body = ask(server, "dlaas/openapi.json")

    found = json.loads(body)
    assert found == json.loads(json.dumps(describe(endpoint=Endpoint.JUPYTER, base=BASE)))
    named = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    assert named == {(route.method, route.path) for route in ROUTES}
    for record in found["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(record)


def test_answers_keep_to_their_schemas(server: Server) -> None:
    found = describe(endpoint=Endpoint.JUPYTER)
    view = json.loads(ask(server, "dlaas/jobs/fake-1")[2])
    jsonschema.validate(view, {"$ref": "#/components/schemas/JobView", "components": found["components"]})
    pool = json.loads(ask(server, "dlaas/pool")[2])
    jsonschema.validate(pool, {"$ref": "#/components/schemas/PoolView", "components": found["components"]})


def test_kernel_finds_the_endpoint_of_its_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_PARENT_PID", str(server.process.pid))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(server.runtime))
    monkeypatch.setenv("JUPYTER_DLAAS_POOL", str(server.pool.folder))
    monkeypatch.delenv("JUPYTER_DLAAS_POOL_DIR", raising=False)

    own = SocketEndpoint(server.pool.folder, named_by="JUPYTER_DLAAS_POOL")
    assert find_endpoints() == (server.endpoint, own)
    assert Client().pool().name == "lab"


def test_kernels_get_the_name_of_the_pool(server: Server) -> None:
    body = json.dumps({"name": "python3"}).encode()
    status, _, said = ask(server, "api/kernels", "POST", body=body)
    assert status == 201, said
    kernel = json.loads(said)["id"]
    try:
        wanted = f"JUPYTER_DLAAS_POOL={server.pool.folder}".encode()
        until(lambda: any(wanted in child for child in environments(server.process.pid)))
        assert any(wanted in child and b"PYTHONHASHSEED=0" in child for child in environments(server.process.pid))
    finally:
        ask(server, f"api/kernels/{kernel}", "DELETE")


def environments(parent: int) -> list[bytes]:
    """Return the environments of a process's children."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if stat.read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append((stat.parent / "environ").read_bytes())
        except OSError:
            continue  # it ended between the two looks
    return found


def test_hub_user_is_forwarded_and_jobs_count_as_activity(tmp_path: Path) -> None:
    made = make_pool(tmp_path / "pool")
    server = start_server(tmp_path / "server", made, "--DlaasExtension.activity_poll_s=1", JUPYTERHUB_USER="mia")
    try:
        assert server.client.job("fake").owner == "mia"
        before = json.loads(ask(server, "api/status")[2])["last_activity"]
        until(lambda: json.loads(ask(server, "api/status?no_track_activity=1")[2])["last_activity"] > before)
        killed = made.kill()
        until(lambda: made.pid() != killed)  # jobs are under way: they are not left without an engine
    finally:
        stop_server(server)
        end(made)


READERS = """
from jupyter_server.auth import Authorizer
class ReadOnly(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return resource != "dlaas" or (action == "read" and "Shut-Out" not in handler.request.headers)
c.ServerApp.authorizer_class = ReadOnly
"""


def test_read_only_users_change_nothing(tmp_path: Path) -> None:
    made = make_pool(tmp_path / "pool")
    server = start_server(tmp_path / "server", made, config_lines=READERS)
    try:
        for route in PLAIN:
            body = None if route.method in ("GET", "DELETE") else b"{}"
            status = ask(server, example(route), route.method, body=body)[0]
            assert (status < 400) if route.method == "GET" else (status == 403), route
            shut_out = ask(server, example(route), route.method, body=body, headers={"Shut-Out": "1"})[0]
            assert shut_out == 403, route
        assert {one["method"] for one in made.asked()} == {"GET"}
    finally:
        stop_server(server)
        end(made)


def test_server_that_may_not_start_engines_says_so(tmp_path: Path) -> None:
    made = make_pool(tmp_path / "pool")
    server = start_server(tmp_path / "server", made, "--DlaasExtension.start_engine=False")
    try:
        status, _, body = ask(server, "dlaas/pool")
        assert (status, json.loads(body)["error"]["code"]) == (503, "unavailable")
        with pytest.raises(Unavailable, match="no engine is running"):
            server.client.request("GET", "pool", pauses_s=())
        with pytest.raises(HTTPClientError, match="503"):
            asyncio.run(connect(server))
    finally:
        stop_server(server)
        end(made)


def test_a_cancelled_request_leaves_no_connection_to_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, connection = socket.socketpair()
    is_starting, is_started = threading.Event(), threading.Event()

    def connect(endpoint: SocketEndpoint, timeout_s: float) -> socket.socket:
        if not endpoint.may_start:
            raise Unavailable("no engine is running")
        is_starting.set()
        assert is_started.wait(20)
        return connection

    async def leave() -> bytes:
        request = asyncio.ensure_future(Link(SocketEndpoint(tmp_path)).connect())
        await asyncio.to_thread(is_starting.wait, 20)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        is_started.set()
        return await asyncio.to_thread(engine.recv, 1)

    monkeypatch.setattr(discovery, "connect", connect)
    engine.settimeout(20)
    with engine:
        assert asyncio.run(leave()) == b"", "closed"
