"""Artifacts by the paths that people write."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.presentation.artifact_paths import full_path, missing_text
from jupyter_dlaas.wire.protocol import NotFound
from tests.engine.driving import engine_on
from tests.pools.simulated.simulated_pool import SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock

ARTIFACTS = ("checkpoints/00000003/manifest.json", "output/notes.txt", "output/plots/loss.png", "output/output/a.txt")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("output/notes.txt", "output/notes.txt"),
        ("notes.txt", "output/notes.txt"),
        ("./notes.txt", "output/notes.txt"),
        ("plots/loss.png", "output/plots/loss.png"),
        ("output/a.txt", "output/output/a.txt"),
        ("00000003/manifest.json", "checkpoints/00000003/manifest.json"),
        ("loss.png", None),
        ("", None),
    ],
)
def test_artifact_path_may_omit_the_output_folder(path: str, expected: str | None) -> None:
    assert full_path(path, ARTIFACTS) == expected


def test_missing_artifact_error_lists_similar_files_first() -> None:
    assert missing_text("a-1", "loss.png", ARTIFACTS).startswith("a-1 has no file loss.png; it has output/plots/loss.p")
    assert "it has written no files" in missing_text("a-1", "loss.png", ())
    many = [f"output/{number}.txt" for number in range(30)]
    assert missing_text("a-1", "b.png", many).endswith(" and 20 more")


def test_engine_accepts_both_paths_of_an_artifact(tmp_path: Path) -> None:
    async def whole() -> None:
        clock = VirtualClock(1000.0)
        pool = SimulatedPool([Node(name="n1", devices=(Device(id="d", index=0, kind="GPU"),))], clock)
        engine = await engine_on(tmp_path, pool, clock)
        job = await engine.submit()
        pool._job(job).files["output/notes.txt"] = b"done"  # as its learner does

        for path in ("notes.txt", "output/notes.txt"):
            assert await engine.requests.file_of("ana", job, path) == (job, "output/notes.txt", 4)
        with pytest.raises(NotFound, match=r"no file results/x\.bin; it has output/notes\.txt$"):
            await engine.requests.file_of("ana", job, "results/x.bin")
        await engine.close()

    asyncio.run(whole())
