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

from tests.preloaded import run_script
from tests.selection import covering, each_nth

_HEAD = """
import hashlib, json, multiprocessing, os, sys, threading, time
import torch
import torch.distributed as dist
from jupyter_dlaas.learner.elastic import process_group as groups

torch.set_num_threads(1)
if "device" in sys.argv:
    from tests.learner import fake_nccl
    fake_nccl.install()
size, out = int(sys.argv[1]), sys.argv[2]

def report(rank, **found):
    with open(f"{out}/{rank}.json", "w") as file:
        json.dump(found, file)

def numbers(rank, count, dtype):
    torch.manual_seed(rank)
    return (torch.randn(count) * 10).to(dtype)

def begin(group, tensor):
    return groups.segment_of(group).all_reduce(tensor) if "memory" in sys.argv else groups.AllReduce(group, tensor)
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
    for few in range(2, size + 1):
        if rank < few:
            found[few] = sums(rank, groups.build_group(("127.0.0.1", port), 10 + few, rank, few), few)
    report(rank, found=found)

def sums(rank, group, few):
    found = []
    for count, dtype in KINDS:
        # two under way at once, as the buckets of one model are
        first, second = numbers(rank, count, dtype), numbers(rank + few, count, dtype)
        begun = [begin(group, first), begin(group, second)]
        for one in begun:
            one.wait()
        exact = sum(numbers(other, count, dtype).double() for other in range(few))
        largest = sum(numbers(other, count, dtype).double().abs() for other in range(few))
        error = ((first.double() - exact).abs() / largest.clamp(min=1e-9)).max().item()
        bits = first.view(torch.uint8).numpy().tobytes() + second.view(torch.uint8).numpy().tobytes()
        unit = torch.finfo(dtype).eps if dtype.is_floating_point else 1
        found.append([hashlib.sha256(bits).hexdigest(), error / unit])
    return found
"""
_CUT = """
def learner(rank, group):
    begin(group, torch.ones(3)).wait()
    if rank == 0:
        report("alive")  # and stays, and says nothing
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
        begun = begin(group, tensor)
        waits.set()
        begun.wait()
    except RuntimeError as error:
        report(rank, freed=str(error))
"""


_CUT_THERE = """
def learner(rank, group):
    begin(group, torch.ones(3)).wait()
    if rank == 1:
        groups.cut(group)
        while not os.path.exists(f"{out}/0.json"):  # it lives, and says nothing
            time.sleep(0.01)
        return
    try:
        begin(group, torch.ones(3)).wait()
    except RuntimeError as error:
        report(rank, freed=str(error))
"""


WAYS = ("network", "memory", "device")


def _play(folder: Path, learner: str, size: int, *more: object, ends: int = 0) -> dict[str, Any]:
    """Run the learners. Return the report of each."""
    script = folder / "learners.py"
    script.write_text(textwrap.dedent(_HEAD + learner + _TAIL))
    code, errors = run_script(script, [size, folder, *more])
    assert code == ends, errors[-3000:]
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.parametrize("way", WAYS)
def test_all_reduce_is_right_and_bitwise_equal_for_all(tmp_path: Path, way: str) -> None:
    reports = _play(tmp_path, _SUMS, 4, way)
    for size in range(2, 5):
        found = [reports[str(rank)]["found"][str(size)] for rank in range(size)]
        assert len({json.dumps([bits for bits, _ in one]) for one in found}) == 1
        assert all(error <= size for one in found for _, error in one)


@pytest.mark.parametrize(("numbers", "way"), covering((n, way) for n in (10, 1_000_000) for way in WAYS))
def test_cut_frees_a_learner_waiting_for_a_silent_one(tmp_path: Path, numbers: int, way: str) -> None:
    reports = _play(tmp_path, _CUT, 2, numbers, way)
    assert reports["1"]["freed"]


@pytest.mark.parametrize("way", ["network", "memory"])  # devices do not report it
def test_a_cut_frees_the_others_too(tmp_path: Path, way: str) -> None:
    assert _play(tmp_path, _CUT_THERE, 2, way)["0"]["freed"]


_ADDRESSES = """
import psutil

def learner(rank, group):
    own = f"127.0.0.{2 + rank}"
    os.environ["DLAAS_ADDRESS"] = own
    group = groups.build_group(("127.0.0.1", port), 2, rank, size)
    tensor = torch.ones(3)
    groups.AllReduce(group, tensor).wait()
    hosts = {one.laddr.ip for one in psutil.Process().net_connections("inet") if one.laddr}
    report(rank, sum=tensor.tolist(), listens=own in hosts)
"""


def test_gloo_listens_at_the_address_that_the_host_has_named(tmp_path: Path) -> None:
    reports = _play(tmp_path, _ADDRESSES, 2)
    assert reports == {str(rank): {"sum": [2.0] * 3, "listens": True} for rank in range(2)}


_PASSES = """
import random
from jupyter_dlaas.learner.elastic import shm_allreduce as shared_memory
shared_memory.SPACE = 300_000
KINDS = [(3, torch.float32), (70_001, torch.float32), (12, torch.float64), (513, torch.bfloat16)]
KINDS += [(80_000, torch.float32)]  # does not fit

def learner(rank, group):
    chance, own, segment, wrong = random.Random(7), random.Random(rank), groups.segment_of(group), 0
    for number in range(400):
        kinds = [KINDS[chance.randrange(5)] for _ in range(chance.randint(1, 3))]
        given = [torch.full((count,), float((rank + 1) * (number % 32)), dtype=dtype) for count, dtype in kinds]
        begun = [segment.all_reduce(one) or groups.AllReduce(group, one) for one in given]
        if own.random() < 0.3:
            time.sleep(own.random() * 0.003)
        if chance.random() < 0.1:
            segment.discard()
            begun = [one for one in begun if isinstance(one, groups.AllReduce)]
            given = []
        for one in begun:
            one.wait()
        wrong += sum(bool((one != (number % 32) * sum(range(1, size + 1))).any()) for one in given)
    report(rank, wrong=wrong, begun=segment.started)
"""


@pytest.mark.parametrize("size", each_nth([3, 2], 2))
def test_passes_through_shared_memory_do_not_write_over_each_other(tmp_path: Path, size: int) -> None:
    """Learners come at any time; passes have any number of sums, and some are broken off."""
    reports = _play(tmp_path, _PASSES, size)
    assert [one["wrong"] for one in reports.values()] == [0] * size
    assert len({one["begun"] for one in reports.values()}) == 1


_GIVEN = """
from jupyter_dlaas.learner.elastic import shm_allreduce as shared_memory
shared_memory._PIECE = 1000

def learner(rank, group):
    segment, found = groups.segment_of(group), []
    for number, (count, dtype) in enumerate([(1, torch.float32), (2500, torch.float64), (999, torch.bfloat16)] * 3):
        source = number % size
        whole = numbers(number, count, dtype)
        tensor = whole.clone() if rank == source else torch.zeros_like(whole)
        segment.broadcast(tensor, source)
        total = torch.ones(300)
        segment.all_reduce(total).wait()
        found.append(torch.equal(tensor, whole) and float(total.sum()) == 300 * size)
    report(rank, found=found)
"""


def test_shared_memory_transfers_tensors_of_any_size(tmp_path: Path) -> None:
    reports = _play(tmp_path, _GIVEN, 3)
    assert [one["found"] for one in reports.values()] == [[True] * 9] * 3


_KILLED = """
import signal

def learner(rank, group):
    segment = groups.segment_of(group)
    segment.all_reduce(torch.ones(3)).wait()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            segment.all_reduce(torch.ones(3)).wait()
    except RuntimeError as error:
        report(rank, freed=str(error))
"""


def test_all_reduce_with_a_killed_peer_is_freed(tmp_path: Path) -> None:
    reports = _play(tmp_path, _KILLED, 3, ends=9)
    assert set(reports) == {"0", "2"}
    assert "learner 1" in reports["0"]["freed"]  # an error of its connection, or its end: whichever came first


_APART = """
from jupyter_dlaas.learner.elastic import shm_allreduce as shared_memory

def apart(*arguments):
    raise PermissionError("not on speaking terms")

if len(sys.argv) > 3 and sys.argv[3] == "boot":
    shared_memory.boot_id = lambda: str(os.getpid())
else:
    connect = shared_memory._connect
    shared_memory._connect = lambda names, *more: apart() if more[-1] == 1 else connect(names, *more)
    shared_memory._CONNECT_S = 0.5

def learner(rank, group):
    tensor = torch.ones(3)
    groups.AllReduce(group, tensor).wait()
    report(rank, has_segment=groups.segment_of(group) is not None, sum=tensor.tolist())
"""


@pytest.mark.parametrize("why", ["boot", "refused"])
def test_without_shared_memory_all_use_the_network(tmp_path: Path, why: str) -> None:
    reports = _play(tmp_path, _APART, 3, why)
    assert list(reports.values()) == [{"has_segment": False, "sum": [3.0] * 3}] * 3


_LARGE = """
from jupyter_dlaas.learner.elastic import shm_allreduce as shared_memory
shared_memory.SPACE = 4096

def learner(rank, group):
    segment, tensors = groups.segment_of(group), [torch.ones(1000), torch.ones(1000), torch.ones(10), torch.ones(1000)]
    first, *others = [segment.all_reduce(one) for one in tensors]
    first.wait(), others[1].wait()
    report(rank, sums=[float(one[0]) for one in tensors], others=[one is None for one in others], begun=segment.started)
"""


def test_tensors_too_large_for_shared_memory_use_the_network(tmp_path: Path) -> None:
    reports = _play(tmp_path, _LARGE, 2)
    assert (
        list(reports.values())
        == [
            {"sums": [2.0, 1.0, 2.0, 1.0], "others": [True, False, True], "begun": 2},
        ]
        * 2
    )


_GIVES = """
import os, sys, threading
import torch
import torch.distributed as dist
from jupyter_dlaas.learner.elastic import process_group as groups

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


def test_cut_frees_the_receiver_of_a_dead_sender() -> None:
    """One sends 100 MB to the other again and again: gloo does not report an end within a message."""
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
