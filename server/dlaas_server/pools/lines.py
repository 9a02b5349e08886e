"""Facts out of the bytes of a journal: whole lines only."""

from __future__ import annotations

from dlaas_server.pools.base import PoolError
from jupyter_dlaas.facts import Fact, fact_from_line
from jupyter_dlaas.wire import Invalid

__all__ = ["facts_in"]


def facts_in(data: bytes, offset: int, name: str) -> tuple[list[Fact], int]:
    """The facts in `data` (from byte `offset` of the journal `name` on), and the offset after the last whole line.

    A torn tail (no newline yet) is left for the next time. Raises PoolError, naming journal and byte, for a whole line
    that is no fact: going on behind it would silently lose what happened.
    """
    found: list[Fact] = []
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        try:
            found.append(fact_from_line(data[at:end]))
        except (ValueError, Invalid) as error:
            if found:
                break  # what came before is good; the next call begins here, and tells
            raise PoolError(f"{name} is damaged at byte {offset + at}: {error}") from error
        at = end + 1
    return found, offset + at
