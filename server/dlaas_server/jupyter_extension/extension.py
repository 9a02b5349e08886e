"""Jupyter Server extension: authenticates and authorises by Jupyter's own means, then relays to the engine.

Thin on purpose. Routes come from the one table in `routes.py`; bodies and answers pass unchanged. The owner of a job
is the operating-system user (the engine sees who connects) or, under JupyterHub, the hub's user, for whom this server
vouches; never Jupyter's `current_user`, which with the default token is another "Anonymous" at each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from jupyter_server.extension.application import ExtensionApp
from traitlets import Bool, Float, Unicode

from dlaas_server.jupyter_extension.handlers import (
    CheckHandler,
    NotebookHandler,
    OpenApiHandler,
    RelayHandler,
    StreamHandler,
    UploadHandler,
)
from dlaas_server.jupyter_extension.relay import Broken, Link
from dlaas_server.rest.routes import ROUTES, Endpoint, Route
from jupyter_dlaas.client import discovery
from jupyter_dlaas.runtime.system import hash_seed
from jupyter_dlaas.wire.protocol import State, Unavailable

__all__ = ["DlaasExtension"]

_UNFINISHED: Final = ",".join(
    state for state in State if state is not State.HALTED and not state.is_final
)  # a halted job waits for a person: it keeps nothing alive


class DlaasExtension(ExtensionApp):
    """Train notebook cells as jobs that outlive the tab, the kernel and this server."""

    name = "dlaas"
    app_name = "Deep learning as a service"
    description = "Train notebook cells as jobs that outlive the tab, the kernel and the server."
    load_other_extensions = True

    pool = Unicode(
        "",
        help="The pool: a name (a folder below <jupyter data dir>/dlaas) or a directory with a slash in it. It has to "
        "exist: `jupyter dlaas pool use local --pool NAME` creates it. "
        "Empty: the value of JUPYTER_DLAAS_POOL, else 'local'.",
    ).tag(config=True)
    pool_dir = Unicode("", help="The pool's directory, created if missing; overrides `pool`.").tag(config=True)
    engine_idle_s = Float(
        None,
        allow_none=True,
        help="Seconds without work after which an engine that this server started exits. Default: the engine's own.",
    ).tag(config=True)
    start_engine = Bool(
        True, help="Start the engine when a request needs one. False: an administrator runs `jupyter dlaas serve`."
    ).tag(config=True)
    set_hash_seed = Bool(
        True,
        help="Start kernels with PYTHONHASHSEED=0, unless the variable is set: then sets of strings have the same "
        "order in a notebook and in its jobs. False: Python draws another seed for each kernel.",
    ).tag(config=True)
    activity_poll_s = Float(
        30.0, help="Interval in seconds for checking whether jobs run, so that idle culling does not stop this server."
    ).tag(config=True)

    def initialize_settings(self) -> None:
        """Choose the pool, and pass it to the kernels of this server."""
        chosen = discovery.pool_endpoint(self.pool_dir or self.pool or None)
        if self.pool_dir:
            chosen = replace(chosen, named_by=None)
        elif self.pool and chosen.named_by is not None:
            chosen = replace(chosen, named_by="DlaasExtension.pool")
        if chosen.named_by is None:  # kernels get it as a pool that exists
            with contextlib.suppress(OSError):  # its first use reports this
                chosen.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["JUPYTER_DLAAS_POOL"] = str(chosen.directory)
        os.environ.pop("JUPYTER_DLAAS_POOL_DIR", None)  # else kernels would not use this server
        if self.set_hash_seed:
            os.environ.setdefault(hash_seed.VARIABLE, hash_seed.DEFAULT)
        endpoint = replace(chosen, engine_idle_s=self.engine_idle_s, may_start=self.start_engine)
        self.link = Link(endpoint, user=os.environ.get("JUPYTERHUB_USER") or None)
        self.unfinished = 0
        self._watch: asyncio.Task[None] | None = None

    def initialize_handlers(self) -> None:
        """Register every route of the table."""
        by_path: dict[str, dict[str, Route]] = {}
        for route in ROUTES:
            by_path.setdefault(route.path, {})[route.method] = route
        self.handlers.extend(self._handler(routes) for routes in by_path.values())
        assert self.serverapp is not None
        self.serverapp.io_loop.add_callback(self._start_watching)

    def _handler(self, routes: dict[str, Route]) -> tuple[str, type, dict[str, Any]]:
        route = next(iter(routes.values()))
        arguments: dict[str, Any] = {"link": self.link, "routes": routes}
        if route.is_websocket:
            return route.regex, StreamHandler, {"link": self.link}
        if route.operation == "describe":
            return route.regex, OpenApiHandler, arguments
        if route.operation == "check_notebook":
            return route.regex, CheckHandler, arguments
        if route.endpoint is Endpoint.JUPYTER:
            return route.regex, NotebookHandler, arguments
        return route.regex, UploadHandler if route.request is bytes else RelayHandler, arguments

    # ------------------------------------------------------------------------------------- activity, against culling

    async def _start_watching(self) -> None:
        self._watch = asyncio.ensure_future(self._watch_activity())

    async def _watch_activity(self) -> None:
        """Count this server as active while jobs run."""
        assert self.serverapp is not None
        while True:
            self.unfinished = await self._count_unfinished()
            if self.unfinished:
                times = self.serverapp.web_app.settings.setdefault("last_activity_times", {})
                times["dlaas"] = datetime.now(UTC)
            await asyncio.sleep(max(1.0, self.activity_poll_s))

    async def _count_unfinished(self) -> int:
        """Return the number of unfinished jobs. Restarts an engine that was killed, but not one that exited."""
        target = f"/dlaas/jobs?state={_UNFINISHED}&limit=1000"
        was_killed = self.unfinished > 0 or self.link.path.exists()  # an engine that exits removes its socket
        try:
            answer = await self.link.call("GET", target, {}, timeout_s=10.0, may_start=was_killed)
            return len(json.loads(bytes(answer.body))["jobs"]) if answer.status == 200 else self.unfinished
        except Unavailable:
            return 0 if not was_killed else self.unfinished
        except (Broken, ValueError, KeyError):
            return self.unfinished  # no answer is no proof that no job runs

    def current_activity(self) -> dict[str, int] | None:
        """Return the activity that prevents idle culling of this server: unfinished jobs."""
        return {"jobs": self.unfinished} if self.unfinished else None

    async def stop_extension(self) -> None:
        """Stop watching and close relayed requests; jobs and engine continue."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        self.link.close()
