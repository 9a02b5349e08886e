"""The random streams of a learner: kept in checkpoints, and put back to the number."""

from __future__ import annotations

import random
import sys
from typing import Any

__all__ = ["put_back", "snapshot"]


def snapshot() -> dict[str, Any]:
    """Where Python's, NumPy's and torch's random streams are, as far as they are in use."""
    found: dict[str, Any] = {"python": random.getstate()}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        found["numpy"] = numpy_random.get_state()
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def put_back(found: dict[str, Any]) -> None:
    """Go on where a snapshot was taken."""
    random.setstate(found["python"])
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None and "numpy" in found:
        numpy_random.set_state(found["numpy"])
    if torch is not None and "torch" in found:
        torch.set_rng_state(found["torch"])
        if "cuda" in found and torch.cuda.is_available() and torch.cuda.device_count() == len(found["cuda"]):
            torch.cuda.set_rng_state_all(found["cuda"])
