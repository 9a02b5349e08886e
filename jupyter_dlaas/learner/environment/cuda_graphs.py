"""Recording of CUDA graphs by the program, during which observers must not wait for the GPU."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["is_captured"]


def is_captured(tensor: Any) -> bool:
    """Return whether operations on a tensor are being recorded. Reading its value then spoils the graph."""
    return bool(tensor.is_cuda and sys.modules["torch"].cuda.is_current_stream_capturing())
