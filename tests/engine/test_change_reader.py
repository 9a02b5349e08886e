"""Reads of files that change."""

from __future__ import annotations

import asyncio

from dlaas_server.pools.change_reader import ChangeReader


def test_change_during_a_read_is_read_afterwards() -> None:
    content, seen = {"job": 1}, list[int]()
    may_go_on = asyncio.Event()

    async def read(job: str) -> None:
        found = content[job]
        await may_go_on.wait()
        seen.append(found)

    async def change_twice() -> None:
        reader = ChangeReader("progress", read)
        reader.changed("job")
        await asyncio.sleep(0)
        content["job"] = 2
        reader.changed("job")
        tasks = [*reader]
        assert len(tasks) == 1
        may_go_on.set()
        await asyncio.wait(tasks)
        assert not [*reader]

    asyncio.run(change_twice())
    assert seen == [1, 2]


def test_failed_read_does_not_prevent_the_next() -> None:
    calls = list[str]()

    async def read(job: str) -> None:
        calls.append(job)
        raise OSError(job)

    async def change_twice() -> None:
        reader = ChangeReader("progress", read)
        for _ in range(2):
            reader.changed("job")
            await asyncio.wait([*reader])

    asyncio.run(change_twice())
    assert calls == ["job", "job"]
