"""Process groups: built beside the current one, and cut when one of their learners is lost.

They use gloo. On one machine, small tensors are summed in shared memory. On GPUs, gradients use NCCL, and all other
collectives still use gloo.

Imported only in a gang whose program uses torch.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist

from jupyter_dlaas.learner.elastic import nccl_group, shm_allreduce
from jupyter_dlaas.learner.elastic.shm_allreduce import SharedSegment

__all__ = [
    "CPU",
    "NEVER",
    "AllReduce",
    "broadcast",
    "build_group",
    "collectives_started",
    "cut",
    "drop",
    "finish",
    "interruptible",
    "is_apart",
    "segment_of",
    "single_learner_group",
]

ADDRESS: Final = "DLAAS_ADDRESS"
"""Variable with the address at which other learners reach this one."""
CPU: Final = torch.device("cpu")
NEVER: Final = timedelta(days=7)
"""The timeout of gloo: others may wait as long as rank 0 validates or saves. Lost peers are detected by other means."""
_RENDEZVOUS_FIRST: Final = timedelta(seconds=60)
_RENDEZVOUS_NEXT: Final = timedelta(seconds=10)
"""The rendezvous timeouts of the first group, entered at a learner's start, and of later ones, which are retried."""
_LOOK: Final = timedelta(seconds=0.25)
_LINGER_S: Final = 1.0
_AT_ONCE: Final = timedelta(milliseconds=1)
_TAG_CUT: Final = 1
_T = TypeVar("_T")
_c10d: Final[Any] = dist
_is_cut: Final[weakref.WeakKeyDictionary[Any, bool]] = weakref.WeakKeyDictionary()
"""Cut flags of the groups made here."""
_segments: Final[weakref.WeakKeyDictionary[Any, SharedSegment]] = weakref.WeakKeyDictionary()
"""The shared memory of groups whose learners have it."""
_halves: Final[weakref.WeakKeyDictionary[Any, nccl_group.Half]] = weakref.WeakKeyDictionary()
"""The device backends of groups that do not use the CPU for gradients."""
_SUM: Final = dist.AllreduceOptions()
_SUM.asyncOp = True


class AllReduce:
    """An all-reduce (sum) of a contiguous tensor in place. Raises RuntimeError if the group is lost."""

    def __init__(self, group: Any, tensor: torch.Tensor) -> None:
        self._group, self._work, self._device = group, group.allreduce([tensor], _SUM), tensor.device

    def wait(self) -> None:
        """Wait for the sum. Raises RuntimeError if the group is lost."""
        finish(self._group, self._work, self._device)


def broadcast(group: Any, tensor: torch.Tensor, source: int) -> None:
    """Broadcast one learner's tensor to a group. Raises RuntimeError if the group is lost."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = source, 0
    finish(group, group.broadcast([tensor], options), tensor.device)


def finish(group: Any, work: Any, device: torch.device = CPU) -> None:
    """Wait until a collective is complete. Raises RuntimeError if the group is lost or was cut.

    `device`: the device of the collective's tensors.

    If a peer dies in the middle of a message, its receiver waits forever, even when the group is cut: gloo reports a
    closed connection only to receivers whose message has not begun. So this function polls.
    """
    if group not in _is_cut:
        work.wait()
        return
    half = _halves.get(group)
    if half is not None and half.device.type == device.type:
        half.finish(work, lambda: _is_cut[group])
        return
    while True:
        try:
            work.wait(_LOOK)
        except RuntimeError:
            if work.is_completed():
                work.wait()  # it failed, or has just completed
            elif _is_cut[group]:
                raise
            else:
                continue
        return


def cut(group: Any) -> None:
    """Close all connections of a group: every waiting learner, here or elsewhere, gets a RuntimeError. From any thread.

    gloo's `abort` does not do this. A receive timeout does (gloo, `UnboundBuffer::waitRecv`: "let all pairs know about
    this app-side timeout"), so this function posts a receive that never completes.
    """
    _is_cut[group] = True
    if (segment := _segments.get(group)) is not None:
        segment.cut()
    if (half := _halves.get(group)) is not None:
        half.cut()
    with suppress(RuntimeError):
        group.recv([torch.empty(1, device=CPU)], (group.rank() + 1) % group.size(), _TAG_CUT).wait(_AT_ONCE)


def drop(group: list[Any]) -> None:
    """Release a group in the background. This list must hold the last reference. gloo takes 20 ms for it."""

    def clear() -> None:
        time.sleep(_LINGER_S)  # the control thread may still read it
        if (half := _halves.get(group[0])) is not None:
            half.cut()
        group.clear()

    threading.Thread(target=clear, name="dlaas-drop", daemon=True).start()


def single_learner_group(device: torch.device = CPU) -> Any:
    """Return a group of one."""
    return _group(_c10d.HashStore(), 0, 1, device)


def segment_of(group: Any) -> SharedSegment | None:
    """Return the shared memory of a group's learners; None if they have none."""
    return None if group is None else _segments.get(group)


def is_apart(group: Any) -> bool:
    """Return whether gradients use another backend than the other collectives."""
    return group is not None and group in _halves


def collectives_started(group: Any) -> int:
    """Return the number of collectives started in a group, except in shared memory.

    Raises RuntimeError if the group is lost.
    """
    half = _halves.get(group)
    return int(group._get_sequence_number_for_group()) + (0 if half is None else half.collectives_started())


def build_group(where: tuple[str, int], number: int, rank: int, size: int, device: torch.device = CPU) -> Any:
    """Build the group of a round by rendezvous through the store at `where`; wait for all. Raises RuntimeError.

    `device`: the device of this learner's models.
    """
    within = _RENDEZVOUS_NEXT if number else _RENDEZVOUS_FIRST
    store = _c10d.TCPStore(where[0], where[1], is_master=False, wait_for_workers=False, timeout=within)
    store = _c10d.PrefixStore(f"round-{number}", store)
    group = _group(store, rank, size, device, within)
    if (half := _half(store, rank, size, device)) is not None:
        group._register_backend(half.device, half.kind, half.backend)
        _halves[group] = half
    if (segment := shm_allreduce.rendezvous(store, rank, size)) is not None:
        _segments[group] = segment
    return group


def interruptible(call: Callable[[], _T]) -> _T:
    """Return the result of a call that waits in native code, and let signal handlers run meanwhile.

    Python runs a signal handler between two instructions of the main thread: a rendezvous that waits there for a
    learner that has left would ignore SIGTERM.
    """
    outcome: Future[_T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            outcome.set_exception(error)

    threading.Thread(target=work, name="dlaas-rendezvous", daemon=True).start()
    return outcome.result()


def _half(store: Any, rank: int, size: int, device: torch.device) -> nccl_group.Half | None:
    """Return the device backend of the group; None if gloo is to be used, through the CPU if necessary."""
    if device.type != "cuda" or not nccl_group.have_a_gpu_each(store, rank, size, device):
        return None
    return nccl_group.Nccl(_c10d.PrefixStore("nccl", store), rank, size, device)


def _gloo(store: Any, rank: int, size: int, within: timedelta) -> Any:
    """Return a gloo backend that listens at the address of this learner's host, if the host has named one.

    Otherwise gloo takes the address of the host's name, and the loopback address if that name does not resolve: in pods
    the others could then not connect. `within` is the limit for them to do so.
    """
    gloo: Any = dist.ProcessGroupGloo
    address = os.environ.get(ADDRESS)
    if not address:
        return gloo(store, rank, size, within)
    options = gloo._Options()
    options._timeout = within
    options._devices = [gloo.create_device(hostname=address)]
    return gloo(store, rank, size, options)


def _group(store: Any, rank: int, size: int, device: torch.device, within: timedelta = _RENDEZVOUS_FIRST) -> Any:
    """Return a group that torch.distributed does not register, so that it can be dropped with a dead learner in it."""
    kinds = dist.ProcessGroup.BackendType
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(kinds.GLOO)
    gloo = _gloo(store, rank, size, within)
    gloo._set_default_timeout(NEVER)
    for one in {CPU.type, device.type}:
        group._register_backend(torch.device(one), kinds.GLOO, gloo)
    _is_cut[group] = False
    return group
