"""Groups in which learners talk: made beside the one in use, and cut when somebody in one is lost.

Over gloo; on one machine what is small is added up in memory that they share. On GPUs gradients go over NCCL, and what
concerns all learners otherwise still over gloo.

Loaded only in a gang whose program uses torch.
"""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from jupyter_dlaas.learner.elastic import nccl_group, shm_allreduce
from jupyter_dlaas.learner.elastic.shm_allreduce import Room

__all__ = [
    "CPU",
    "NEVER",
    "Sum",
    "broadcast",
    "build_group",
    "cut",
    "drop",
    "finish",
    "is_apart",
    "lonely_group",
    "room_of",
    "talks",
]

CPU: Final = torch.device("cpu")
NEVER: Final = timedelta(days=7)
"""Others may wait while rank 0 validates or saves, however long: a peer that is lost is noticed otherwise."""
_MEET: Final = timedelta(seconds=60)
_MEET_AGAIN: Final = timedelta(seconds=10)
"""To the first group they come from their own starts; to another one from wherever they are, and it is tried again."""
_LOOK: Final = timedelta(seconds=0.25)
_LINGER_S: Final = 1.0
_AT_ONCE: Final = timedelta(milliseconds=1)
_TAG_CUT: Final = 1
_c10d: Final[Any] = dist
_is_cut: Final[weakref.WeakKeyDictionary[Any, bool]] = weakref.WeakKeyDictionary()
"""Of the groups that were made here."""
_rooms: Final[weakref.WeakKeyDictionary[Any, Room]] = weakref.WeakKeyDictionary()
"""Of those whose learners share memory."""
_halves: Final[weakref.WeakKeyDictionary[Any, nccl_group.Half]] = weakref.WeakKeyDictionary()
"""Of those that add up elsewhere than on the CPU."""
_SUM: Final = dist.AllreduceOptions()
_SUM.asyncOp = True


class Sum:
    """A contiguous tensor that is being added up over a group, in place. Raises RuntimeError when the group is lost."""

    def __init__(self, group: Any, tensor: torch.Tensor) -> None:
        self._group, self._work, self._device = group, group.allreduce([tensor], _SUM), tensor.device

    def wait(self) -> None:
        """Until it is the sum. Raises RuntimeError when the group is lost."""
        finish(self._group, self._work, self._device)


def broadcast(group: Any, tensor: torch.Tensor, source: int) -> None:
    """Give all in a group the tensor of one. Raises RuntimeError when the group is lost."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = source, 0
    finish(group, group.broadcast([tensor], options), tensor.device)


def finish(group: Any, work: Any, device: torch.device = CPU) -> None:
    """Wait until all of a group have done something together. Raises RuntimeError when it is lost, or was cut.

    `device`: where the tensors are that they did it with.

    A peer that dies in the middle of a message leaves its receiver waiting for ever, also when the group is cut: gloo
    tells the end of a connection only to those whose message has not begun. So the wait looks up now and then.
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
                work.wait()  # it failed, or came to its end just now
            elif _is_cut[group]:
                raise
            else:
                continue
        return


def cut(group: Any) -> None:
    """Close all of a group's connections: whoever waits in it, here or there, gets a RuntimeError. From any thread.

    gloo's `abort` does nothing of the kind. A receipt that comes too late does (gloo, `UnboundBuffer::waitRecv`: "let
    all pairs know about this app-side timeout"), so one is asked for that never comes.
    """
    _is_cut[group] = True
    if (room := _rooms.get(group)) is not None:
        room.cut()
    if (half := _halves.get(group)) is not None:
        half.cut()
    with suppress(RuntimeError):
        group.recv([torch.empty(1)], (group.rank() + 1) % group.size(), _TAG_CUT).wait(_AT_ONCE)


def drop(group: list[Any]) -> None:
    """Let go of a group of which this list holds the last reference. gloo takes 20 ms for it: nobody waits for that."""

    def clear() -> None:
        time.sleep(_LINGER_S)  # the control thread may look into it just now
        if (half := _halves.get(group[0])) is not None:
            half.cut()
        group.clear()

    threading.Thread(target=clear, name="dlaas-drop", daemon=True).start()


def lonely_group(device: torch.device = CPU) -> Any:
    """A group of one."""
    return _group(_c10d.HashStore(), 0, 1, device)


def room_of(group: Any) -> Room | None:
    """The memory that the learners of a group share; None where they do not."""
    return None if group is None else _rooms.get(group)


def is_apart(group: Any) -> bool:
    """Whether gradients go another way than the rest."""
    return group is not None and group in _halves


def talks(group: Any) -> int:
    """How many talks were begun in a group, but for those in shared memory. Raises RuntimeError when it is lost."""
    half = _halves.get(group)
    return int(group._get_sequence_number_for_group()) + (0 if half is None else half.talks())


def build_group(where: tuple[str, int], number: int, rank: int, size: int, device: torch.device = CPU) -> Any:
    """The group of a round, met through the store at `where`. Takes until all have come. Raises RuntimeError.

    `device`: of this learner's models.
    """
    within = _MEET_AGAIN if number else _MEET
    store = _c10d.TCPStore(where[0], where[1], is_master=False, wait_for_workers=False, timeout=within)
    store = _c10d.PrefixStore(f"round-{number}", store)
    group = _group(store, rank, size, device, within)
    if (half := _half(store, rank, size, device)) is not None:
        group._register_backend(half.device, half.kind, half.backend)
        _halves[group] = half
    if (room := shm_allreduce.meet(store, rank, size)) is not None:
        _rooms[group] = room
    return group


def _half(store: Any, rank: int, size: int, device: torch.device) -> nccl_group.Half | None:
    """How the learners of a group add up on their devices; None: over gloo, by way of the CPU where it must be."""
    if device.type != "cuda" or not nccl_group.have_a_gpu_each(store, rank, size, device):
        return None
    return nccl_group.Nccl(_c10d.PrefixStore("nccl", store), rank, size, device)


def _group(store: Any, rank: int, size: int, device: torch.device, within: timedelta = _MEET) -> Any:
    """A group that torch.distributed keeps no book of, so that it can be dropped with a dead learner in it."""
    kinds = dist.ProcessGroup.BackendType
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(kinds.GLOO)
    gloo: Any = dist.ProcessGroupGloo(store, rank, size, within)  # so long others may take to come into it
    gloo._set_default_timeout(NEVER)
    for one in {CPU.type, device.type}:
        group._register_backend(torch.device(one), kinds.GLOO, gloo)
    _is_cut[group] = False
    return group
