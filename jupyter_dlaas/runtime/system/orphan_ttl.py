"""Time limits for processes of a job without a guardian."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["last_s", "ttl_s"]

_TTL_S: Final = 60.0
_LEAST_S: Final = 5.0


def ttl_s() -> float:
    """Return the seconds for which learners train on before they save and exit. `DLAAS_TTL_S` sets them."""
    return float(os.environ.get("DLAAS_TTL_S", _TTL_S))


def last_s() -> float:
    """Return the seconds after which processes that cannot exit (for example, blocked in native code) are killed.

    The default is 87 s, so that none is left after 90 s.
    """
    return ttl_s() + max(_LEAST_S, 0.45 * ttl_s())
