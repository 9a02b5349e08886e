"""How long the processes of a job go on without a guardian."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["last_s", "ttl_s"]

_TTL_S: Final = 60.0
_LEAST_S: Final = 5.0


def ttl_s() -> float:
    """So long learners train on; then they save and leave. `DLAAS_TTL_S` in the job's environment says otherwise."""
    return float(os.environ.get("DLAAS_TTL_S", _TTL_S))


def last_s() -> float:
    """After that who cannot leave (blocked in native code, say) is killed: 87 s, so that none is left after 90."""
    return ttl_s() + max(_LEAST_S, 0.45 * ttl_s())
