"""The golden wire messages: what Python writes and reads is what the page's tests read too."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.wire.codec import Invalid, decode, encode
from jupyter_dlaas.wire.protocol import Bundle, Cursor, DrainView, JobView, PoolView, Progress

HERE = Path(__file__).parent


def load(name: str) -> Any:
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def made() -> dict[str, object]:
    spec = importlib.util.spec_from_file_location("wire_make", HERE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.files())


RECORDS: Mapping[str, type] = {
    **{path.name: JobView for path in sorted(HERE.glob("job_*.json"))},
    "pool.json": PoolView,
    "drain.json": DrainView,
    "bundle.json": Bundle,
}
INSIDE: Mapping[str, tuple[str, type]] = {
    "message_job.json": ("job", JobView),
    "message_progress.json": ("progress", Progress),
    "message_pool.json": ("pool", PoolView),
    "message_subscribe.json": ("cursor", Cursor),
}


def test_golden_files_equal_the_records() -> None:
    on_disk = {path.name: load(path.name) for path in HERE.glob("*.json")}

    assert on_disk == made()


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_record_survives_the_wire(name: str) -> None:
    value = load(name)

    assert encode(decode(RECORDS[name], value)) == value


@pytest.mark.parametrize("name", sorted(INSIDE))
def test_a_message_carries_its_record_whole(name: str) -> None:
    field, kind = INSIDE[name]
    value = load(name)[field]

    assert encode(decode(kind, value)) == value


def test_a_log_frame_counts_bytes_not_characters() -> None:
    frame = load("message_log.json")

    assert frame["to"] - frame["from"] == len(frame["text"].encode()) > len(frame["text"])


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("number", ["1" + 400 * "0", "-1" + 400 * "0", "9007199254740993", "-9007199254740993"])
def test_non_portable_number_is_refused_by_its_name(kind: type, number: str) -> None:
    with pytest.raises(Invalid, match=r"^learners: .* is out of range$"):
        decode(kind, json.loads(number), where="learners")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_non_number_is_refused_by_its_name(number: str) -> None:
    with pytest.raises(Invalid, match=r"^share: .* is out of range$"):
        decode(float, json.loads(number), where="share")
