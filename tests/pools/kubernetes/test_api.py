"""Requests and watches: credentials, overload, gaps, and what is known while the server does not answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlaas_server.pools.kubernetes.api import Api, ApiError, ApiUnreachable
from dlaas_server.pools.kubernetes.manifests.names import Json
from dlaas_server.pools.kubernetes.transport import open_transport
from dlaas_server.pools.kubernetes.watch import BACKOFF_S_MAX, Change, Watch
from tests.pools.kubernetes.fake_server import FakeAnswer, FakeServer, events, item, listed, refusal


def api_of(server: FakeServer) -> Api:
    return Api(server.connect, sleep=server.paused.append)


def test_expired_credentials_are_loaded_again_once() -> None:
    server = FakeServer(refusal(401), FakeAnswer(body={"a": 1}))
    assert api_of(server).get("pods", "ml", "a") == {"a": 1}
    assert server.logins == 2

    server = FakeServer(refusal(401), refusal(401, message="Unauthorized"))
    with pytest.raises(ApiUnreachable, match="Unauthorized"):
        api_of(server).get("pods", "ml", "a")
    assert server.logins == 2


def test_an_overloaded_server_names_the_pause() -> None:
    server = FakeServer(refusal(429, Retry_After="3"), refusal(503), FakeAnswer(body={}))
    api_of(server).get("pods", "ml", "a")

    assert server.paused == [3.0, 2.0]


def test_an_overload_that_lasts_is_unreachable_and_never_a_refusal() -> None:
    server = FakeServer(*[refusal(429, Retry_After="1000", message="too many requests") for _ in range(4)])
    with pytest.raises(ApiUnreachable, match="too many requests"):
        api_of(server).get("pods", "ml", "a")

    assert max(server.paused) == 10.0


@pytest.mark.parametrize("answer", [OSError("refused"), refusal(500), refusal(504), FakeAnswer(body=b"<html>")])
def test_answers_that_prove_nothing_are_unreachable(answer: FakeAnswer | Exception) -> None:
    with pytest.raises(ApiUnreachable, match=r"cluster\.example\.com"):
        api_of(FakeServer(answer)).get("pods", "ml", "a")


def test_a_refusal_keeps_the_servers_words() -> None:
    with pytest.raises(ApiError, match="exceeded quota") as refused:
        api_of(FakeServer(refusal(403, "Forbidden", "exceeded quota"))).create("pods", "ml", {})

    assert (refused.value.status, refused.value.reason) == (403, "Forbidden")


def test_a_text_of_a_proxy_is_a_refusal_too() -> None:
    with pytest.raises(ApiError, match="<html> not here") as refused:
        api_of(FakeServer(FakeAnswer(status=404, body=b"<html>\n not here"))).get("pods", "ml", "a")

    assert refused.value.status == 404


def test_a_missing_object_counts_as_deleted() -> None:
    api_of(FakeServer(refusal(404, "NotFound"))).delete("pods", "ml", "a")
    api_of(FakeServer(refusal(409, "Conflict"))).delete("pods", "ml", "a", uid="other")
    with pytest.raises(ApiError):
        api_of(FakeServer(refusal(403, "Forbidden"))).delete("pods", "ml", "a")


def _version(found: Json | None) -> str | None:
    return None if found is None else str(found["metadata"]["resourceVersion"])


class Followed:
    """Watch without a thread, with a clock of its own."""

    def __init__(self, server: FakeServer) -> None:
        self.server, self.time_s = server, 0.0
        self.changes: list[tuple[str | None, str | None]] = []
        self.known: list[str | None] = []
        self.watch = Watch(
            api_of(server),
            "pods",
            "ml",
            self._changed,
            knows=lambda: self.known.append(self.watch.knowledge().unknown),
            now=lambda: self.time_s,
            jitter=lambda: 1.0,
        )

    def _changed(self, change: Change) -> None:
        self.changes.append((_version(change.before), _version(change.after)))

    def names(self) -> list[str]:
        return sorted(name for _, name in self.watch.objects())


def test_a_watch_continues_at_the_last_bookmark() -> None:
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "9"}}
    server = FakeServer(
        listed(5, item("a", 1)),
        events(("ADDED", item("b", 7)), ("BOOKMARK", bookmark)),
        events(("DELETED", item("a", 12))),
    )
    followed = Followed(server)
    assert followed.watch.follow() == followed.watch.follow() == 0.0

    assert "resourceVersion=5" in server.sent[1][1]
    assert "resourceVersion=9" in server.sent[2][1]
    assert "allowWatchBookmarks=true" in server.sent[2][1]
    assert followed.names() == ["b"]
    assert followed.changes == [(None, "1"), (None, "7"), ("1", None)]


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_gap_is_closed_by_a_new_list(is_inside: bool) -> None:
    gone = {"code": 410, "reason": "Expired", "message": "too old resource version"}
    refused = events(("ERROR", gone)) if is_inside else refusal(410, "Expired")
    server = FakeServer(
        listed(5, item("a", 1), item("b", 2), item("c", 3, uid="old")), refused,
        listed(20, item("b", 15), item("c", 16, uid="new")), events(),
    )  # fmt: skip
    followed = Followed(server)
    followed.watch.follow()
    followed.watch.follow()

    assert [target.split("?")[0] for _, target, _ in server.sent] == ["/api/v1/namespaces/ml/pods"] * 4
    assert followed.changes[3:] == [("1", None), ("2", "15"), ("3", None), (None, "16")]


@pytest.mark.parametrize("failure", [
    OSError("refused"), refusal(500), events(("ERROR", {"code": 500, "message": "etcdserver: leader changed"})),
    events(end=OSError("reset")), FakeAnswer(pieces=[b"no json\n"]), refusal(403, "Forbidden"),
])  # fmt: skip
def test_a_failed_watch_keeps_its_objects_as_unknown(failure: FakeAnswer | Exception) -> None:
    followed = Followed(FakeServer(listed(5, item("a", 1)), failure, events(("ADDED", item("b", 6)))))
    pause_s = followed.watch.follow()
    followed.time_s = 30.0
    knowledge = followed.watch.knowledge()

    assert 0 < pause_s < 1
    assert knowledge.unknown is not None
    assert knowledge.age_s == 30.0
    assert followed.names() == ["a"]
    followed.watch.follow()
    assert followed.watch.knowledge().unknown is None
    assert followed.watch.knowledge().age_s == 0.0
    assert len(followed.known) == 3
    assert followed.names() == ["a", "b"]


def test_a_short_watch_proves_the_picture_where_nothing_changes() -> None:
    server = FakeServer(listed(5, item("a", 1)), events(end=OSError("reset")), events(), events(end=OSError("reset")))
    followed = Followed(server)
    followed.watch.follow()
    assert followed.watch.knowledge().unknown is not None
    assert followed.watch.follow() == 0.0
    assert followed.watch.knowledge().unknown is None
    followed.watch.follow()

    seconds = [int(target.split("timeoutSeconds=")[1].split("&")[0]) for _, target, _ in server.sent[1:]]
    assert [value <= 1 for value in seconds] == [False, True, False]
    assert followed.names() == ["a"]


class Silent(FakeAnswer):
    """Answer of a watch that sends nothing until it is shut down."""

    def stream(self, amt: int) -> Iterator[bytes]:
        assert self.headers, "the answer was not ended"
        return iter(())

    def shutdown(self) -> None:
        self.headers = {"shut": "down"}


def test_a_watch_that_is_closed_while_it_begins_ends() -> None:
    server = FakeServer(listed(5), Silent())
    followed, send = Followed(server), server.send

    def closed_meanwhile(*request: Any) -> Any:
        if len(server.sent) == 1:
            followed.watch.close()
        return send(*request)

    server.send = closed_meanwhile  # type: ignore[assignment, method-assign]
    followed.watch.follow()
    assert len(server.sent) == 2


def test_attempts_continue_for_ever_with_bounded_pauses() -> None:
    followed = Followed(FakeServer(*[OSError("down")] * 60))
    pauses = [followed.watch.follow() for _ in range(60)]

    assert pauses[:3] == [0.2, 0.4, 0.8]
    assert pauses[-1] == BACKOFF_S_MAX


def test_objects_are_listed_again_after_a_while() -> None:
    followed = Followed(FakeServer(listed(5), events(), listed(8, item("a", 7)), events()))
    followed.watch.follow()
    followed.time_s = 400.0
    followed.watch.follow()

    assert followed.names() == ["a"]


def test_other_pools_never_load_the_kubernetes_package(tmp_path: Path) -> None:
    program = (
        "import sys, jupyter_dlaas, dlaas_server.engine.__main__\n"
        "from pathlib import Path\n"
        "from dlaas_server.engine.service import configured_pool\n"
        "from dlaas_server.pools.config import KubernetesSection, PoolConfig\n"
        "for section in (None, KubernetesSection(enabled=False)):\n"
        "    config = PoolConfig(kubernetes=section)\n"
        "    print(type(configured_pool(Path(sys.argv[1]), config, lambda at_s: at_s)).__name__)\n"
        "import dlaas_server.pools.kubernetes.api\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('kubernetes', 'urllib3')])"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert (done.stdout, done.returncode) == ("LocalPool\nLocalPool\n[]\n", 0), done.stderr


def test_a_user_without_home_is_asked_for_a_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # raises KeyError

    with pytest.raises(ApiUnreachable, match="name a kubeconfig with --kubeconfig FILE or KUBECONFIG"):
        open_transport(None, "laboratory")
