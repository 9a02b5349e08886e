"""Prewarming: the pool prepares processes for this kernel's Python, so that the first job starts fast, too."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading

from jupyter_dlaas.api import option_parsing
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["warm_soon"]


def warm_soon() -> threading.Thread | None:
    """Request prewarming in the background, without any delay. `JUPYTER_DLAAS_WARM=0` disables it."""
    if os.environ.get("JUPYTER_DLAAS_WARM", "1") == "0":
        return None
    environment = option_parsing.without_jupyter(os.environ)
    framework = "torch" if importlib.util.find_spec("torch") is not None else None
    thread = threading.Thread(target=_request, args=(environment, framework), name="dlaas warm", daemon=True)
    thread.start()
    return thread


def _request(environment: dict[str, str], framework: str | None) -> None:
    try:
        Client().warm(sys.executable, environment, framework)
    except DlaasError:
        return  # only an optimisation; a submission reports the error
