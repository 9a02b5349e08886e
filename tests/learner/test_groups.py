"""Groups of real processes: sums that are everybody's to the last bit, and a cut that frees whoever waits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

_HEAD = """
import hashlib, json, multiprocessing, os, sys, threading, time
import torch
import torch.distributed as dist
from jupyter_dlaas.learner import groups

torch.set_num_threads(1)
size, out = int(sys.argv[1]), sys.argv[2]

def told(rank, **found):
    with open(f"{out}/{rank}.json", "w") as file:
        json.dump(found, file)

def numbers(rank, count, dtype):
    torch.manual_seed(rank)
    return (torch.randn(count) * 10).to(dtype)
"""
_TAIL = """
if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    ports = [fork.SimpleQueue() for _ in range(size)]

    def run(rank):
        global port
        port = ports[rank].get()
        learner(rank, groups.build_group(("127.0.0.1", port), 1, rank, size))
        os._exit(0)

    learners = [fork.Process(target=run, args=(rank,)) for rank in range(size)]
    for one in learners:
        one.start()
    # only now: a store has threads, and a fork in the midst of what they do may hang
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for one in ports:
        one.put(store.port)
    for one in learners:
        one.join()
    sys.exit(max(abs(one.exitcode) for one in learners))
"""
_SUMS = """
KINDS = [(7, torch.float32), (10_570, torch.float32), (999, torch.bfloat16), (5, torch.int64), (300_001, torch.float32)]

def learner(rank, group):
    found = {}
    for few in range(1, size + 1):
        if rank < few:
            found[few] = sums(rank, groups.build_group(("127.0.0.1", port), 10 + few, rank, few), few)
    told(rank, found=found)

def sums(rank, group, size):
    found = []
    for count, dtype in KINDS:
        # two under way at once, as the buckets of one model are
        first, second = numbers(rank, count, dtype), numbers(rank + size, count, dtype)
        begun = [groups.Sum(group, first), groups.Sum(group, second)]
        for one in begun:
            one.wait()
        exact = sum(numbers(other, count, dtype).double() for other in range(size))
        largest = sum(numbers(other, count, dtype).double().abs() for other in range(size))
        error = ((first.double() - exact).abs() / largest.clamp(min=1e-9)).max().item()
        bits = first.view(torch.uint8).numpy().tobytes() + second.view(torch.uint8).numpy().tobytes()
        unit = torch.finfo(dtype).eps if dtype.is_floating_point else 1
        found.append([hashlib.sha256(bits).hexdigest(), error / unit])
    return found
"""
_CUT = """
def learner(rank, group):
    groups.Sum(group, torch.ones(3)).wait()
    if rank == 0:
        told("alive")  # and stays, and says nothing
        while not os.path.exists(f"{out}/1.json"):
            time.sleep(0.01)
        return
    tensor = torch.ones(int(sys.argv[3]))
    waits = threading.Event()

    def cut():
        waits.wait()
        time.sleep(0.2)
        groups.cut(group)

    threading.Thread(target=cut).start()
    try:
        begun = groups.Sum(group, tensor)
        waits.set()
        begun.wait()
    except RuntimeError as error:
        told(rank, freed=str(error))
"""


_CUT_THERE = """
def learner(rank, group):
    groups.Sum(group, torch.ones(3)).wait()
    if rank == 1:
        groups.cut(group)
        while not os.path.exists(f"{out}/0.json"):  # it lives, and says nothing
            time.sleep(0.01)
        return
    try:
        groups.Sum(group, torch.ones(3)).wait()
    except RuntimeError as error:
        told(rank, freed=str(error))
"""


def _play(folder: Path, learner: str, size: int, *more: object) -> dict[str, Any]:
    """What each of the learners told."""
    script = folder / "learners.py"
    script.write_text(textwrap.dedent(_HEAD + learner + _TAIL))
    ended = subprocess.run(
        [sys.executable, str(script), str(size), str(folder), *map(str, more)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_a_sum_is_right_and_the_same_to_the_last_bit_for_all(tmp_path: Path) -> None:
    told = _play(tmp_path, _SUMS, 4)
    for size in range(1, 5):
        found = [told[str(rank)]["found"][str(size)] for rank in range(size)]
        assert len({json.dumps([bits for bits, _ in one]) for one in found}) == 1
        assert all(error <= size for one in found for _, error in one)


@pytest.mark.parametrize("numbers", [10, 1_000_000])
def test_a_cut_frees_who_waits_for_one_that_lives_and_says_nothing(tmp_path: Path, numbers: int) -> None:
    told = _play(tmp_path, _CUT, 2, numbers)
    assert told["1"]["freed"]


def test_a_cut_frees_the_others_too(tmp_path: Path) -> None:
    assert _play(tmp_path, _CUT_THERE, 2)["0"]["freed"]


_GIVES = """
import os, sys, threading
import torch
import torch.distributed as dist
from jupyter_dlaas.learner import groups

rank, where = int(sys.argv[1]), ("127.0.0.1", int(sys.argv[2]))
tensor = torch.zeros(25_000_000)
group = groups.build_group(where, 0, rank, 2)

def cut():
    sys.stdin.readline()
    groups.cut(group)

threading.Thread(target=cut, daemon=True).start()
print("up", flush=True)
try:
    while True:
        groups.broadcast(group, tensor, 1)
except RuntimeError:
    os._exit(7)
"""


def test_a_cut_frees_who_receives_from_one_that_died_in_the_middle_of_it() -> None:
    """One gives 100 MB to the other again and again: gloo tells nobody of an end within a message."""
    c10d: Any = dist
    store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-c", _GIVES]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ends: list[Any] = [subprocess.Popen([*command, str(rank), str(store.port)], **pipes) for rank in (0, 1)]
    try:
        for one in ends:
            assert one.stdout.readline() == "up\n"
        time.sleep(0.3)
        ends[0].send_signal(signal.SIGSTOP)  # what is given fills the connection, and cannot all be sent
        time.sleep(0.3)
        ends[1].kill()
        ends[1].wait()
        ends[0].send_signal(signal.SIGCONT)
        ends[0].communicate("cut\n", timeout=30)
        assert ends[0].returncode == 7
    finally:
        for one in ends:
            one.kill()
            one.communicate()
