"""Frames of a link: two lengths, a JSON header, a body and a tag. `server/LINK.md` describes them."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from jupyter_dlaas.wire.codec import Invalid, decode_by_kind, encode, rule

__all__ = [
    "BODY_MAX",
    "HELLO_MAX",
    "KINDS",
    "PATH_MAX",
    "TAG_BYTES",
    "Acknowledge",
    "Data",
    "Frame",
    "FrameReader",
    "Goodbye",
    "Hello",
    "Line",
    "Offer",
    "Open",
    "Ping",
    "Position",
    "Proof",
    "Record",
    "Refusal",
    "Refused",
    "Resume",
    "Stored",
    "pack",
    "parse",
]

PREFIX: Final = struct.Struct(">II")
"""Lengths of the header and of the body."""
HEADER_MAX: Final = 16 << 10
BODY_MAX: Final = 4 << 20
HELLO_MAX: Final = 4 << 10
"""Maximum length of a header from a peer that has not proved the token."""
TAG_BYTES: Final = 32
PATH_MAX: Final = 1024


class Refusal(Exception):
    """Violation of the protocol by a peer. The connection is closed, and the message is logged."""


def _count() -> Any:
    return field(metadata=rule(least=0))


def _path() -> Any:
    return field(metadata=rule(longest=PATH_MAX))


def _hex(digits: int) -> Any:
    return field(metadata=rule(pattern=rf"[0-9a-f]{{{digits}}}", says="is not hexadecimal"))


# -- handshake ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First frame of each side, without a tag."""

    KIND: ClassVar = "hello"
    version: int
    job: str = field(metadata=rule(longest=200))
    name: str = field(metadata=rule(longest=200))
    session: str = _hex(32)
    """Random number of the process that speaks. Another number means that the peer was started again."""
    epoch: int = _count()
    nonce: str = _hex(64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Second frame of each side: its tag proves that the peer knows the token."""

    KIND: ClassVar = "proof"


# -- lines -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """First frame after the handshake: the number of the last line received from the peer's session."""

    KIND: ClassVar = "resume"
    lines: int = _count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One control line; the body is its text."""

    KIND: ClassVar = "line"
    number: int = _count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Number of the last line received."""

    KIND: ClassVar = "ack"
    lines: int = _count()


# -- contents ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Announcement of a stream: a content that grows. `transfer` names it in the following frames."""

    KIND: ClassVar = "open"
    transfer: int = _count()
    path: str = _path()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Announcement of a whole file that the sender wants to place at a path of the receiver."""

    KIND: ClassVar = "offer"
    transfer: int = _count()
    path: str = _path()
    size: int = _count()
    sha256: str = field(metadata=rule(pattern="[0-9a-f]{64}", says="is not a SHA-256"))
    is_executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Number of a content's bytes that are stored: says where to begin, and acknowledges."""

    KIND: ClassVar = "position"
    transfer: int = _count()
    offset: int = _count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Next bytes of a content; the body holds them."""

    KIND: ClassVar = "data"
    transfer: int = _count()
    offset: int = _count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Report that a file is in its place, complete and verified."""

    KIND: ClassVar = "stored"
    transfer: int = _count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Report that a content is not accepted."""

    KIND: ClassVar = "refused"
    transfer: int = _count()
    reason: str = field(metadata=rule(longest=500))


# -- connection --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Sign of life on an idle connection."""

    KIND: ClassVar = "ping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """Reason why the sender closes the connection."""

    KIND: ClassVar = "goodbye"
    reason: str = field(metadata=rule(longest=500))


Record = (
    Hello | Proof | Resume | Line | Acknowledge | Open | Offer | Position | Data | Stored | Refused | Ping | Goodbye
)
KINDS: Final[dict[str, type[Record]]] = {kind.KIND: kind for kind in Record.__args__}


class Frame(NamedTuple):
    """Frame as it was received, before its tag is checked. `signed` is what the tag covers."""

    header: bytes
    body: bytes
    signed: bytes
    tag: bytes


def pack(record: Record, body: bytes = b"") -> bytes:
    """Return a frame without its tag."""
    header = json.dumps({"kind": record.KIND, **encode(record)}, separators=(",", ":")).encode()
    if len(header) > HEADER_MAX or len(body) > BODY_MAX:
        raise ValueError(f"a frame of {len(header):,} + {len(body):,} bytes exceeds the limits of a link")
    return PREFIX.pack(len(header), len(body)) + header + body


def parse(header: bytes) -> Record:
    """Return the record of a header. Raise Refusal."""
    try:
        return decode_by_kind(header, KINDS, tag="kind", where="header")
    except Invalid as error:
        raise Refusal(f"a frame is malformed: {error!s:.200}") from None


class FrameReader:
    """Incremental reader of frames. It never buffers more than one frame of the permitted length."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next_frame(self, *, header_max: int, body_max: int, tag_bytes: int) -> Frame | None:
        """Return the next frame; None until it is complete. Raise Refusal as soon as its lengths are too large."""
        if len(self._buffer) < PREFIX.size:
            return None
        header, body = PREFIX.unpack_from(self._buffer)
        if header > header_max or body > body_max:
            raise Refusal(
                f"a frame of {header:,} + {body:,} bytes is too long (maximum: {header_max:,} + {body_max:,})"
            )
        signed = PREFIX.size + header + body
        if len(self._buffer) < signed + tag_bytes:
            return None
        raw = bytes(self._buffer[: signed + tag_bytes])
        del self._buffer[: signed + tag_bytes]
        return Frame(
            raw[PREFIX.size : PREFIX.size + header], raw[PREFIX.size + header : signed], raw[:signed], raw[signed:]
        )
