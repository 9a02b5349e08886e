"""Sums over the learners of one machine, through memory that they share: no network, and no thread between them.

gloo takes a millisecond for the gradients of a small model, most of it to wake threads. Here each learner writes its
part where the others read it, says so with a byte, and adds up all parts in rank order: the same bits for all of them.

Loaded by `groups` only in a gang whose program uses torch.
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

__all__ = ["MOST", "Diverged", "Room", "meet"]

MOST: Final = 16
"""Above so many learners to add up in turns, as gloo does, is quicker than that each reads all."""
SPACE: Final = 32 << 20
"""Bytes for what one learner writes in one pass. Only what is used takes memory, twice; larger tensors go by gloo."""
_ALIGNED: Final = 64
_PIECE: Final = 4 << 20
"""What is given goes in pieces: one is written while the one before is read."""
_MEET_S: Final = 5.0
_SAID: Final = b"."
_WORDS: Final = [bytes([number]) for number in range(256)]
_ENOUGH: Final = 4096


class Diverged(Exception):
    """Learners came to different places of their program: `words` are those that were said, by rank."""

    def __init__(self, words: Sequence[int]) -> None:
        super().__init__(f"learners said different words: {list(words)}")
        self.words = tuple(words)


class Room:
    """The memory, and a connection to each of the others. For one thread, but for `cut`.

    Sums that are under way at the same time make up a pass. What is written in one pass is read in it; the next one
    writes elsewhere, and the one after that writes there again. By then all have read: nobody says a word in the next
    pass before it has ended this one, and nobody ends that without a word of all.
    """

    def __init__(self, rank: int, peers: Sequence[socket.socket | None], memory: mmap.mmap) -> None:
        """`peers`: by rank, None for this learner itself."""
        self._rank, self._memory = rank, memory
        self._peers = list(peers)
        self._others = [(number, one) for number, one in enumerate(peers) if one is not None]
        self.begun = 0
        """How many sums were begun."""
        self._said = [0] * len(self._peers)
        """How many words each of the others has said."""
        self._own = bytearray()
        """Words of this learner that were not compared with the others' yet,"""
        self._heard = [bytearray() for _ in self._peers]
        """and words of the others."""
        self._compared = 0
        self._under_way = 0
        self._half = self._used = 0
        self._views: dict[tuple[int, int, int, torch.dtype], list[torch.Tensor]] = {}

    def add_up(self, tensor: torch.Tensor, word: int = 0) -> Sum | None:
        """Begin to add a tensor up, in place. None where there is no room for it, which all find in the same way.

        `word`: below 256, says what is added up; all must say the same. Raises RuntimeError when others are lost.
        """
        size, used = tensor.numel() * tensor.element_size(), self._used if self._under_way else 0
        if used + size > SPACE or not tensor.is_contiguous():
            return None
        parts = self._write(used, tensor.numel(), tensor.dtype)
        self._used = used + -(-size // _ALIGNED) * _ALIGNED
        parts[self._rank].copy_(tensor.view(-1))
        self.say(word)
        return Sum(self, self.begun, tensor, parts)

    def begin(self, word: int) -> None:
        """Say a word with nothing to add up, and compare it with the next ones."""
        self._under_way += 1
        self.say(word)

    def give(self, tensor: torch.Tensor, source: int) -> None:
        """One learner's tensor (contiguous) to all, however large. Raises RuntimeError when others are lost."""
        for piece in tensor.view(-1).view(torch.uint8).split(_PIECE):
            there = self._write(0, len(piece), torch.uint8)[source]
            if source == self._rank:
                there.copy_(piece)
            self.say()
            self.hear(self.begun)
            if source != self._rank:
                piece.copy_(there)

    def say(self, word: int = 0) -> None:
        """Tell all others that what was to be written is there."""
        said = _WORDS[word]
        self._own += said
        try:
            for _, one in self._others:
                one.send(said, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise RuntimeError(f"another learner is gone: {error}") from error
        self.begun += 1

    def _write(self, at: int, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
        """Where each learner writes its own now, by rank: so many bytes from the start of what this pass has."""
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

    def hear(self, number: int) -> None:
        """Wait until all have begun so many sums.

        Raises RuntimeError when others are lost, or after a cut, and Diverged where they said other words.
        """
        for rank, one in self._others:
            while self._said[rank] < number:
                try:
                    words = one.recv(_ENOUGH)
                except OSError as error:
                    raise RuntimeError(f"learner {rank} is gone: {error}") from error
                if not words:
                    raise RuntimeError(f"learner {rank} is gone, or the group was cut")
                self._said[rank] += len(words)
                self._heard[rank] += words
        self._under_way -= 1
        if (count := number - self._compared) > 0:
            self._compare(count)

    def _compare(self, count: int) -> None:
        own, self._own = self._own[:count], self._own[count:]
        self._compared += count
        is_same = True
        words = [own] * len(self._peers)
        for rank, _ in self._others:
            heard = words[rank] = self._heard[rank][:count]
            del self._heard[rank][:count]
            is_same = is_same and heard == own
        if not is_same:
            raise Diverged(next(said for said in zip(*words, strict=True) if len(set(said)) > 1))

    def meet(self, few: torch.Tensor, word: int) -> None:
        """Add up a few numbers where all others come to do so, too. Raises as `hear` does."""
        begun = self.add_up(few, word)
        assert begun is not None
        begun.wait()

    def first_of(self, rank: int) -> float:
        """The number that a learner wrote first in this pass, as float64."""
        offset = (self._half * len(self._peers) + rank) * SPACE
        return float(torch.frombuffer(self._memory, dtype=torch.float64, count=1, offset=offset))

    def forget(self) -> None:
        """Nobody will wait for what is under way: it is over once all have begun it. Raises RuntimeError."""
        if self._under_way:
            self.hear(self.begun)
            self._under_way = 0

    def cut(self) -> None:
        """End all connections: whoever waits, here or there, gets a RuntimeError. From any thread."""
        for _, one in self._others:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        for _, one in self._others:
            one.close()


class Sum:
    """A tensor that is being added up, in place."""

    __slots__ = ("_number", "_parts", "_room", "_tensor")

    def __init__(self, room: Room, number: int, tensor: torch.Tensor, parts: list[torch.Tensor]) -> None:
        self._room, self._number, self._tensor, self._parts = room, number, tensor, parts

    def wait(self) -> None:
        """Until it is the sum. Raises RuntimeError when others are lost."""
        self._room.hear(self._number)
        first, second, *others = self._parts
        sum_ = torch.add(first, second, out=self._tensor.view(-1))
        for part in others:
            sum_.add_(part)


def meet(store: Any, rank: int, size: int) -> Room | None:
    """A room for these learners, who find each other in the store. None, for all of them, where they cannot share one.

    Raises RuntimeError when others do not come, as the store does.
    """
    if not 2 <= size <= MOST:
        return None
    with ExitStack() as until_ready:
        listening = until_ready.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind("")  # by a name that the kernel chooses, and that leaves no file behind
        listening.listen(size)
        here = [boot_id(), str(Path("/proc/self/ns/net").readlink())]
        store.set(f"room-{rank}", json.dumps([*here, listening.getsockname().hex()]))
        told = [json.loads(store.get(f"room-{other}")) for other in range(size)]
        if any(one[:2] != here for one in told):
            return None
        room: Room | None = None
        # They are not on speaking terms, say in containers: gloo then.
        with suppress(OSError):
            names = [bytes.fromhex(one[2]) for one in told]
            peers = [
                None if one is None else until_ready.enter_context(one) for one in _connect(listening, names, rank)
            ]
            room = Room(rank, peers, _memory(peers, rank))
            until_ready.pop_all()
            listening.close()
        store.set(f"room-{rank}-ready", str(room is not None))
        are_ready = [store.get(f"room-{other}-ready") == b"True" for other in range(size)]
        return room if all(are_ready) else None


def _connect(listening: socket.socket, names: Sequence[bytes], rank: int) -> list[socket.socket | None]:
    """A connection to each of the others, by rank: those below are called, those above call. Raises OSError."""
    peers: list[socket.socket | None] = [None] * len(names)
    listening.settimeout(_MEET_S)
    with ExitStack() as on_failure:
        for other in range(rank):
            one = peers[other] = on_failure.enter_context(socket.socket(socket.AF_UNIX))
            one.settimeout(_MEET_S)
            one.connect(names[other])
            one.sendall(bytes([rank]))
        for _ in range(rank + 1, len(names)):
            one = on_failure.enter_context(listening.accept()[0])
            one.settimeout(_MEET_S)
            _, user, _ = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.getuid():
                raise PermissionError("another user calls")
            peers[one.recv(1)[0]] = one
        on_failure.pop_all()
    return peers


def _memory(peers: Sequence[socket.socket | None], rank: int) -> mmap.mmap:
    """The memory, which learner 0 makes and gives to the others: it is gone with the last of them. Raises OSError."""
    size = 2 * len(peers) * SPACE
    if rank == 0:
        fd = os.memfd_create("dlaas")
        os.ftruncate(fd, size)
    else:
        first = peers[0]
        assert first is not None
        said, fds, _, _ = socket.recv_fds(first, 1, 1)
        if not said or not fds:
            raise ConnectionError("learner 0 is gone")
        fd = fds[0]
    try:
        for one in peers:
            if one is not None:
                if rank == 0:
                    socket.send_fds(one, [_SAID], [fd])
                one.settimeout(None)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
