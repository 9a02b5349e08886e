"""The server side of jupyter_dlaas: Jupyter server extension, engine, scheduler core, store and pools."""

from __future__ import annotations
