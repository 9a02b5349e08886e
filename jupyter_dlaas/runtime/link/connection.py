"""Authenticated frames over one byte stream: handshake, proof of the job's token, tags. Pure: bytes in, bytes out.

Each side sends a fresh nonce in its hello. From the token and both hellos follow two keys, one for each direction, and
every later frame carries an HMAC-SHA256 with its direction's key over the frame's number and content. The first such
frame proves the token. A recorded connection does not repeat the other side's nonce, so it proves nothing; a frame that
was changed, repeated, left out, reordered or reflected has a wrong tag.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from jupyter_dlaas.runtime.link.frames import (
    BODY_MAX,
    HEADER_MAX,
    HELLO_MAX,
    TAG_BYTES,
    Frame,
    FrameReader,
    Goodbye,
    Hello,
    Proof,
    Record,
    Refusal,
    pack,
    parse,
)

__all__ = ["TOKEN_BYTES_MIN", "VERSION", "Connection", "Endpoint"]

VERSION: Final = 1
TOKEN_BYTES_MIN: Final = 16
_DIALER: Final = b"jupyter-dlaas link: dialer to acceptor"
_ACCEPTOR: Final = b"jupyter-dlaas link: acceptor to dialer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One side of a link: what it is called, and the token that it must prove to know."""

    job: str
    name: str
    token: bytes
    session: str
    """Random number of this process, 32 hexadecimal digits."""
    epoch: int = 0
    """Number of this guardian among those of the job; agents send 0."""

    def __post_init__(self) -> None:
        if len(self.token) < TOKEN_BYTES_MIN:
            raise ValueError(f"the token of a job needs at least {TOKEN_BYTES_MIN} bytes")

    def __repr__(self) -> str:
        return f"Endpoint({self.job}/{self.name}, session {self.session[:8]}, epoch {self.epoch})"


class Connection:
    """One side of a connection. A connection that was refused or closed is never used again."""

    def __init__(self, me: Endpoint, *, is_dialer: bool, nonce: bytes, epoch_min: int = 0) -> None:
        self._me, self._is_dialer, self._epoch_min = me, is_dialer, epoch_min
        self._reader = FrameReader()
        self._out = bytearray()
        hello = Hello(version=VERSION, job=me.job, name=me.name, session=me.session, epoch=me.epoch, nonce=nonce.hex())
        self._hello = hello
        self._packed_hello = pack(hello)
        self._send_key = self._receive_key = b""
        self._sent = self._received = 0
        self.peer: Hello | None = None
        """Hello of the peer. It is only a claim until `is_proven`."""
        self.is_proven = False
        """True once the peer has proved the token."""
        if is_dialer:
            self._out += self._packed_hello

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def take(self, limit: int) -> bytes:
        """Return and remove the next bytes to write."""
        data = bytes(self._out[:limit])
        del self._out[: len(data)]
        return data

    def give_back(self, data: bytes) -> None:
        """Put back bytes that could not be written."""
        self._out[:0] = data

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes that wait to be written."""
        return len(self._out)

    def receive(self, data: bytes) -> list[tuple[Record, bytes]]:
        """Return the records that arrived, with their bodies. Raise Refusal."""
        self._reader.feed(data)
        records: list[tuple[Record, bytes]] = []
        while (frame := self._next_frame()) is not None:
            if self.peer is None:
                self._greet(frame)
            elif not self.is_proven:
                self._check_proof(frame)
            else:
                self._check_tag(frame, "a frame's tag is wrong")
                record = parse(frame.header)
                if isinstance(record, Hello | Proof):
                    raise Refusal(f"a second {record.KIND}")
                records.append((record, frame.body))
        return records

    def send(self, record: Record, body: bytes = b"") -> None:
        """Queue a frame. Only allowed once the peer has proved the token."""
        assert self.is_proven
        self._send(record, body)

    # -- handshake -----------------------------------------------------------------------------------------------------

    def _next_frame(self) -> Frame | None:
        if self.peer is None:
            return self._reader.next_frame(header_max=HELLO_MAX, body_max=0, tag_bytes=0)
        body_max = BODY_MAX if self.is_proven else 0
        header_max = HEADER_MAX if self.is_proven else HELLO_MAX
        return self._reader.next_frame(header_max=header_max, body_max=body_max, tag_bytes=TAG_BYTES)

    def _greet(self, frame: Frame) -> None:
        peer = parse(frame.header)
        if not isinstance(peer, Hello):
            raise Refusal(f"the first frame is {peer.KIND}, not hello")
        if peer.version != VERSION:
            raise Refusal(f"it speaks version {peer.version} of the protocol, this side version {VERSION}")
        if peer.job != self._me.job:
            raise Refusal(f"it belongs to job {peer.job!r}, not to {self._me.job!r}")
        if peer.nonce == self._hello.nonce or peer.session == self._me.session:
            raise Refusal("it reflects this side's own hello")
        if peer.epoch < self._epoch_min:
            raise Refusal(f"it is of epoch {peer.epoch}; epoch {self._epoch_min} was seen already")
        self.peer = peer
        self._derive_keys(frame.signed)
        if not self._is_dialer:
            self._out += self._packed_hello
        self._send(Proof())

    def _derive_keys(self, peers: bytes) -> None:
        first, second = (self._packed_hello, peers) if self._is_dialer else (peers, self._packed_hello)
        hellos = hashlib.sha256(hashlib.sha256(first).digest() + hashlib.sha256(second).digest()).digest()
        keys = [hmac.digest(self._me.token, label + hellos, "sha256") for label in (_DIALER, _ACCEPTOR)]
        self._send_key, self._receive_key = keys if self._is_dialer else reversed(keys)

    def _check_proof(self, frame: Frame) -> None:
        self._check_tag(frame, "it does not prove the job's token (another token, or a replayed connection)")
        record = parse(frame.header)
        if not isinstance(record, Proof):
            raise Refusal(f"its second frame is {record.KIND}, not proof")
        self.is_proven = True

    # -- tags ----------------------------------------------------------------------------------------------------------

    def _send(self, record: Record, body: bytes = b"") -> None:
        self.send_packed(pack(record, body))

    def send_packed(self, frame: bytes) -> None:
        """Queue a frame without its tag, and add the tag."""
        self._out += frame
        self._out += _tag(self._send_key, self._sent, frame)
        self._sent += 1

    def _check_tag(self, frame: Frame, what: str) -> None:
        if not hmac.compare_digest(frame.tag, _tag(self._receive_key, self._received, frame.signed)):
            raise Refusal(what)
        self._received += 1

    def say_goodbye(self, reason: str) -> None:
        """Queue the reason why this side closes the connection, if the peer has proved the token."""
        if self.is_proven:
            self._send(Goodbye(reason=reason[:500]))


def _tag(key: bytes, number: int, frame: bytes) -> bytes:
    code = hmac.new(key, number.to_bytes(8, "big"), "sha256")
    code.update(frame)
    return code.digest()
