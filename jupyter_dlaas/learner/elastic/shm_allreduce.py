"""All-reduce for the learners of one machine through shared memory, without a network or an intermediate thread.

gloo takes a millisecond for the gradients of a small model, mostly to wake threads. Here each learner writes its part
where the others can read it, signals them with one byte, and sums all parts in rank order. So all learners get bitwise
identical results.

Imported by `process_group` only in a gang whose program uses torch.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import torch

from jupyter_dlaas.runtime.system.process import boot_id

__all__ = ["LEARNERS_MAX", "Diverged", "SharedSegment", "rendezvous"]

LEARNERS_MAX: Final = 16
"""The maximum number of learners. Beyond it, gloo's algorithm is faster than each learner reading all parts."""
SPACE: Final = 32 << 20
"""Bytes per learner and pass, allocated twice. Only pages in use take memory; larger tensors use gloo."""
_ALIGNED: Final = 64
_PIECE: Final = 4 << 20
"""Bytes per piece of a broadcast: one is written while the one before is read."""
_CONNECT_S: Final = 5.0
_READY: Final = b"."
_TAGS: Final = [bytes([number]) for number in range(256)]
_RECEIVE_BYTES: Final = 4096


class Diverged(Exception):
    """The error for learners at different points of their program. `tags`: by rank."""

    def __init__(self, tags: Sequence[int]) -> None:
        super().__init__(f"learners sent different messages: {list(tags)}")
        self.tags = tuple(tags)


class SharedSegment:
    """The shared segment and a connection to each of the other learners. Single-threaded except for `cut`.

    All-reduces in flight at the same time form a pass. Data written in a pass is read in that pass. The next pass
    writes to the other half of the segment, and the one after that reuses the first half. By then all learners have
    read it: no learner signals in a pass before it has completed the one before, which requires a signal from all
    learners.
    """

    def __init__(self, rank: int, peers: Sequence[socket.socket | None], memory: mmap.mmap) -> None:
        """Create the segment's view. `peers`: connections by rank, None for this learner itself."""
        self._rank, self._memory = rank, memory
        self._peers = list(peers)
        self._others = [(number, one) for number, one in enumerate(peers) if one is not None]
        self.started = 0
        """The number of all-reduces started."""
        self._received = [0] * len(self._peers)
        """The number of tags received from each of the other learners."""
        self._own_tags = bytearray()
        """This learner's tags that have not been compared yet."""
        self._pending_tags = [bytearray() for _ in self._peers]
        """The other learners' tags that have not been compared yet."""
        self._compared = 0
        self._under_way = 0
        self._half = self._used = 0
        self._views: dict[tuple[int, int, int, torch.dtype], list[torch.Tensor]] = {}

    def all_reduce(self, tensor: torch.Tensor, tag: int = 0) -> AllReduce | None:
        """Start an all-reduce (sum) in place; return None if the tensor does not fit, which all learners find alike.

        `tag`: the tag, below 256, which must be equal in all learners. Raises RuntimeError if learners are lost.
        """
        size, used = tensor.numel() * tensor.element_size(), self._used if self._under_way else 0
        if used + size > SPACE or not tensor.is_contiguous():
            return None
        parts = self._write(used, tensor.numel(), tensor.dtype)
        self._used = used + -(-size // _ALIGNED) * _ALIGNED
        parts[self._rank].copy_(tensor.view(-1))
        self.signal(tag)
        return AllReduce(self, self.started, tensor, parts)

    def begin(self, tag: int) -> None:
        """Send a tag without data; it is compared together with the next ones."""
        self._under_way += 1
        self.signal(tag)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Broadcast one learner's contiguous tensor of any size. Raises RuntimeError if learners are lost."""
        for piece in tensor.view(-1).view(torch.uint8).split(_PIECE):
            there = self._write(0, len(piece), torch.uint8)[source]
            if source == self._rank:
                there.copy_(piece)
            self.signal()
            self.wait_for(self.started)
            if source != self._rank:
                piece.copy_(there)

    def signal(self, tag: int = 0) -> None:
        """Signal all others that this learner's data is written."""
        sent = _TAGS[tag]
        self._own_tags += sent
        try:
            for _, one in self._others:
                one.send(sent, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise RuntimeError(f"lost the connection to another learner: {error}") from error
        self.started += 1

    def _write(self, at: int, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
        """Return the regions in which the learners write, by rank. `at`: the offset in bytes within this pass."""
        if not self._under_way:
            self._half = 1 - self._half
        self._under_way += 1
        place = (self._half, at, count, dtype)
        found = self._views.get(place)
        if found is None:
            learners = len(self._peers)
            offsets = [(self._half * learners + rank) * SPACE + at for rank in range(learners)]
            found = [torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset) for offset in offsets]
            self._views[place] = found
        return found

    def wait_for(self, number: int) -> None:
        """Wait until all learners have started this number of all-reduces.

        Raises RuntimeError if learners are lost or after a cut, and Diverged if tags differ.
        """
        for rank, one in self._others:
            while self._received[rank] < number:
                try:
                    tags = one.recv(_RECEIVE_BYTES)
                except OSError as error:
                    raise RuntimeError(f"lost the connection to learner {rank}: {error}") from error
                if not tags:
                    raise RuntimeError(f"learner {rank} ended, or the process group was aborted")
                self._received[rank] += len(tags)
                self._pending_tags[rank] += tags
        self._under_way -= 1
        if (count := number - self._compared) > 0:
            self._compare(count)

    def _compare(self, count: int) -> None:
        own, self._own_tags = self._own_tags[:count], self._own_tags[count:]
        self._compared += count
        is_same = True
        tags = [own] * len(self._peers)
        for rank, _ in self._others:
            received = tags[rank] = self._pending_tags[rank][:count]
            del self._pending_tags[rank][:count]
            is_same = is_same and received == own
        if not is_same:
            raise Diverged(next(column for column in zip(*tags, strict=True) if len(set(column)) > 1))

    def all_reduce_now(self, few: torch.Tensor, tag: int) -> None:
        """Sum a small tensor, if all learners reach a call with the same tag. Raises as `wait_for` does."""
        reduction = self.all_reduce(few, tag)
        assert reduction is not None
        reduction.wait()

    def first_value_of(self, rank: int) -> float:
        """Return the first float64 that a learner wrote in this pass."""
        offset = (self._half * len(self._peers) + rank) * SPACE
        return float(torch.frombuffer(self._memory, dtype=torch.float64, count=1, offset=offset))

    def discard(self) -> None:
        """Discard all-reduces in flight: wait until all learners have started them. Raises RuntimeError."""
        if self._under_way:
            self.wait_for(self.started)
            self._under_way = 0

    def cut(self) -> None:
        """Close all connections: every waiting learner, here or elsewhere, gets a RuntimeError. From any thread."""
        for _, one in self._others:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        for _, one in self._others:
            one.close()


class AllReduce:
    """An all-reduce (sum) in flight, in place."""

    __slots__ = ("_number", "_parts", "_segment", "_tensor")

    def __init__(self, segment: SharedSegment, number: int, tensor: torch.Tensor, parts: list[torch.Tensor]) -> None:
        self._segment, self._number, self._tensor, self._parts = segment, number, tensor, parts

    def wait(self) -> None:
        """Wait for the sum. Raises RuntimeError if learners are lost."""
        self._segment.wait_for(self._number)
        first, second, *others = self._parts
        sum_ = torch.add(first, second, out=self._tensor.view(-1))
        for part in others:
            sum_.add_(part)


def rendezvous(store: Any, rank: int, size: int) -> SharedSegment | None:
    """Create a shared segment by rendezvous through the store. Return None in all learners if they cannot share one.

    Raises RuntimeError if learners do not arrive, as the store does.
    """
    if not 2 <= size <= LEARNERS_MAX:
        return None
    with ExitStack() as until_ready:
        listening = until_ready.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind("")  # a name chosen by the kernel, which leaves no file behind
        listening.listen(size)
        here = [boot_id(), str(Path("/proc/self/ns/net").readlink())]
        # These keys keep their names: learners of a gang may run different versions.
        store.set(f"room-{rank}", json.dumps([*here, listening.getsockname().hex()]))
        addresses = [json.loads(store.get(f"room-{other}")) for other in range(size)]
        if any(one[:2] != here for one in addresses):
            return None
        segment: SharedSegment | None = None
        # The learners cannot connect, for example in separate containers: use gloo then.
        with suppress(OSError):
            names = [bytes.fromhex(one[2]) for one in addresses]
            peers = [
                None if one is None else until_ready.enter_context(one) for one in _connect(listening, names, rank)
            ]
            segment = SharedSegment(rank, peers, _memory(peers, rank))
            until_ready.pop_all()
            listening.close()
        store.set(f"room-{rank}-ready", str(segment is not None))
        are_ready = [store.get(f"room-{other}-ready") == b"True" for other in range(size)]
        return segment if all(are_ready) else None


def _connect(listening: socket.socket, names: Sequence[bytes], rank: int) -> list[socket.socket | None]:
    """Connect to each of the others, by rank: to lower ranks, and accept higher ones. Raises OSError."""
    peers: list[socket.socket | None] = [None] * len(names)
    listening.settimeout(_CONNECT_S)
    with ExitStack() as on_failure:
        for other in range(rank):
            one = peers[other] = on_failure.enter_context(socket.socket(socket.AF_UNIX))
            one.settimeout(_CONNECT_S)
            one.connect(names[other])
            one.sendall(bytes([rank]))
        for _ in range(rank + 1, len(names)):
            one = on_failure.enter_context(listening.accept()[0])
            one.settimeout(_CONNECT_S)
            _, user, _ = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.getuid():
                raise PermissionError("connection from another user refused")
            peers[one.recv(1)[0]] = one
        on_failure.pop_all()
    return peers


def _memory(peers: Sequence[socket.socket | None], rank: int) -> mmap.mmap:
    """Map the segment, which learner 0 creates and sends to the others. Raises OSError.

    The kernel frees it with the last learner.
    """
    size = 2 * len(peers) * SPACE
    if rank == 0:
        fd = os.memfd_create("dlaas")
        os.ftruncate(fd, size)
    else:
        first = peers[0]
        assert first is not None
        said, fds, _, _ = socket.recv_fds(first, 1, 1)
        if not said or not fds:
            raise ConnectionError("lost the connection to learner 0")
        fd = fds[0]
    try:
        for one in peers:
            if one is not None:
                if rank == 0:
                    socket.send_fds(one, [_READY], [fd])
                one.settimeout(None)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
