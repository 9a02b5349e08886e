"""The server side of jupyter_dlaas: Jupyter server extension, engine, scheduler core, store and pools."""

from __future__ import annotations


def _jupyter_server_extension_points() -> list[dict[str, object]]:
    from dlaas_server.jupyter_extension.extension import DlaasExtension

    return [{"module": "dlaas_server.jupyter_extension.extension", "app": DlaasExtension}]
