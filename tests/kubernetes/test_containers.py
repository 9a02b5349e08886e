"""Containers of process nodes: namespaces, files, signals, exit codes and logs. No cluster is needed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.nodes.containers import Container, ContainerSpec, Log, StartFailed
from tests.kubernetes.nodes.images import REPOSITORY, Images, base_mounts, image_environment
from tests.kubernetes.nodes.volumes import expand

ENDLESS = "while true; do sleep 0.1; done"


def make_container(folder: Path, *command: str, mounts: list[dict[str, Any]] | None = None) -> Container:
    folder.chmod(0o755)
    spec = ContainerSpec(
        hostname="pod-1",
        command=command,
        environment=image_environment("pod-1", Images().path("image")),
        directory="/",
        uid=os.getuid() or 1000,
        gid=os.getgid() or 1000,
        groups=[],
        mounts=[*base_mounts(), *(mounts or [])],
    )
    return Container(spec, folder, Log(folder / "0.log"))


async def output_of(container: Container, *, follow: bool = False) -> str:
    parts = [line.rendered(with_time=False) async for line in container.log.lines(follow=follow)]
    return b"".join(parts).decode()


async def run(container: Container) -> tuple[int, str]:
    await container.start()
    return await container.wait(), await output_of(container)


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_a_container_has_namespaces_and_files_of_its_own(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    mounts: list[dict[str, Any]] = [
        {"kind": "bind", "source": str(volume), "target": "/data"},
        {"kind": "bind", "source": str(volume), "target": "/etc/dlaas", "read_only": True},
    ]
    script = (
        "echo $$; hostname; echo x > /data/x; cat /etc/dlaas/x; touch /tmp/y && ls /tmp/y;"
        f"ls {REPOSITORY / 'Makefile'} 2>/dev/null || echo hidden;"
        "for path in /etc /etc/dlaas /usr; do touch $path/z 2>/dev/null || echo read-only; done;"
        "python3 -c 'import sys; print(sys.version_info >= (3, 11))'"
    )
    code, output = finish(run(make_container(tmp_path, "sh", "-c", script, mounts=mounts)))

    assert code == 0
    assert output.split() == ["1", "pod-1", "x", "/tmp/y", "hidden", "read-only", "read-only", "read-only", "True"]
    assert (volume / "x").read_text() == "x\n"


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("exec sh -c 'exit 0'", 0)])
def test_a_container_ends_with_its_commands_exit_code(tmp_path: Path, script: str, code: int) -> None:
    assert finish(run(make_container(tmp_path, "sh", "-c", script))) == (code, "")


def test_a_missing_command_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="no-such-program"):
        finish(run(make_container(tmp_path, "no-such-program")))


@pytest.mark.parametrize(("trap", "number", "code"), [
    ("trap 'exit 5' TERM", signal.SIGTERM, 5),
    ("", signal.SIGKILL, 137),
])  # fmt: skip
def test_a_signal_ends_a_container(tmp_path: Path, trap: str, number: signal.Signals, code: int) -> None:
    async def scene() -> int:
        container = make_container(tmp_path, "sh", "-c", f"{trap}\necho started; {ENDLESS}")
        await container.start()
        await anext(aiter(container.log.lines(follow=True)))
        container.send_signal(number)
        return await container.wait()

    assert finish(scene()) == code


def test_process_1_ignores_signals_that_it_does_not_handle(tmp_path: Path) -> None:
    async def scene() -> int:
        container = make_container(tmp_path, "sh", "-c", f"echo started; {ENDLESS}")
        await container.start()
        await anext(aiter(container.log.lines(follow=True)))
        container.send_signal(signal.SIGTERM)
        container.send_signal(signal.SIGUSR1)
        container.send_signal(signal.SIGKILL)
        return await container.wait()

    assert finish(scene()) == 137


def test_a_container_that_has_just_ended_ignores_signals(tmp_path: Path) -> None:
    async def scene() -> int:
        container = make_container(tmp_path, "sh", "-c", "exit 3")
        await container.start()
        end_s = time.monotonic() + 60
        while container.is_running():
            assert time.monotonic() < end_s
            time.sleep(0.01)  # noqa: ASYNC251  # the loop must not learn of the end
        container.send_signal(signal.SIGTERM)
        return await container.wait()

    assert finish(scene()) == 3


def test_everything_ends_with_its_container(tmp_path: Path) -> None:
    async def scene() -> str:
        container = make_container(tmp_path, "sh", "-c", f"setsid sh -c '{ENDLESS}' & echo started; {ENDLESS}")
        await container.start()
        await anext(aiter(container.log.lines(follow=True)))
        container.destroy()
        assert await container.wait() == 137  # waits for the end of the output, which all processes hold
        return await output_of(container)

    assert finish(scene()) == "started\n"


def test_a_log_keeps_each_byte_and_can_be_followed(tmp_path: Path) -> None:
    expected = "a" * 40000 + "\n\n" + "b\n" + "end"

    async def scene() -> tuple[str, str]:
        container = make_container(tmp_path, "sh", "-c", f"printf '%s' '{expected}'")
        await container.start()
        followed = asyncio.create_task(output_of(container, follow=True))
        assert await container.wait() == 0
        return await followed, await output_of(container)

    assert finish(scene()) == (expected, expected)


def test_variables_are_expanded_as_kubernetes_does() -> None:
    assert expand("$(A) $$(A) $(B) $C", {"A": "1"}) == "1 $(A) $(B) $C"
