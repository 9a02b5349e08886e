"""Leadership of a namespace: one engine holds its Lease, and only that engine writes.

The Lease is acquired and renewed as by client-go's leader election: every few seconds, given up after a deadline that
is shorter than its duration, and taken over from a holder that has not renewed it for its whole duration, by the clock
of the engine that waits. Each new leader raises the term in the ledger.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Final

from dlaas_server.pools.kubernetes.api import SERVICE_ACCOUNT, Api, ApiError, ApiUnreachable
from dlaas_server.pools.kubernetes.ledger import Fenced, Ledger, LedgerDamaged, parse_ledger
from dlaas_server.pools.kubernetes.manifests.lease import (
    Holder,
    holder_identity,
    holder_of,
    holder_text,
    lease,
    released_lease,
    renewed_lease,
    stamp,
    stop_command,
)
from dlaas_server.pools.kubernetes.manifests.names import LEASE, LEDGER, Json
from dlaas_server.pools.kubernetes.manifests.pool_manifests import ledger_config_map
from jupyter_dlaas.jobdir.atomic_files import read_json, write_whole
from jupyter_dlaas.runtime.system.process import Identity, identity, is_alive, uptime_s
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["Leadership", "LeaseHeld", "own_holder", "pool_id"]

log = logging.getLogger(__name__)

POOL_ID: Final = "pool-id.json"
SWAPS: Final = 5
"""Number of attempts of one change of the ledger, in case that this engine itself changed it meanwhile."""
ATTEMPTS: Final = 2
"""Number of attempts to write the Lease: after a conflict it is read once."""
CONFLICT: Final = 409
NOT_FOUND: Final = 404
CLOSE_S: Final = 5.0


class LeaseHeld(DlaasError):
    """Another engine is the leader. The message names it and says what to do."""

    code = "lease_held"


def pool_id(directory: Path) -> str | None:
    """Return the id of a pool's directory; None if it has none yet."""
    found = (read_json(directory / POOL_ID) or {}).get("pool")
    return found if isinstance(found, str) else None


def own_holder(directory: Path) -> Holder:
    """Return this process as the holder of a Lease. Gives the directory an id if it has none. Raises OSError."""
    pool = pool_id(directory)
    if pool is None:
        pool = uuid.uuid4().hex
        write_whole(directory / POOL_ID, json.dumps({"format": 1, "pool": pool}).encode(), sync=True)
    me = identity(os.getpid())
    assert me is not None, "this process is alive"
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a pod, a uid may have no name
        user = str(os.getuid())
    host, is_pod = socket.gethostname(), SERVICE_ACCOUNT.exists()
    return Holder(
        pool=pool,
        directory=str(directory),
        user=user,
        host=host,
        is_pod=is_pod,
        pid=me.pid,
        start=me.start,
        boot=me.boot,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of leader election, in the proportions of client-go's defaults."""

    duration_s: int
    """Time without a renewal after which another engine takes over."""

    @property
    def deadline_s(self) -> float:
        """Time without a renewal after which the leader itself writes nothing more."""
        return self.duration_s * 2 / 3

    @property
    def retry_s(self) -> float:
        """Interval of renewals, and of looking whether the Lease is free."""
        return self.duration_s * 2 / 15


class Leadership:
    """Leadership as one engine has it or waits for it. A thread of its own keeps it; safe for use by several threads.

    Its requests must go over a connection that is not fenced: they are safe by compare-and-swap.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        holder: Holder,
        *,
        duration_s: int,
        elected: Callable[[], None] = lambda: None,
        changed: Callable[[], None] = lambda: None,
        now: Callable[[], float] = uptime_s,
    ) -> None:
        """Call `elected` for each new term, before anything else is written, and `changed` when `problem` changed.

        Both are called in the leadership's thread. `elected` may raise DlaasError; then it is called again.
        """
        self._api, self._namespace, self._holder, self._now = api, namespace, holder, now
        self._elected, self._changed = elected, changed
        self._timing = Timing(duration_s=duration_s)
        self._lease: Json | None = None
        """The Lease as this engine wrote it; None while it holds none."""
        self._observed: tuple[object, ...] = ()
        self._observed_s = -inf
        """Time since which the Lease of another engine has not changed."""
        self._valid_until_s = -inf
        self._is_ready = False
        self._is_refused = False
        self._problem = f"This engine is about to ask for the Lease of namespace {namespace}."
        self._reported: str | None = self._problem
        self._ledger, self._version = Ledger(), ""
        self._term: int | None = None
        self._ledger_lock = threading.Lock()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and release the Lease if this engine has it."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        found, is_valid = self._lease, self._now() < self._valid_until_s
        self._lose("this engine has ended")
        if found is None or not is_valid:
            return
        try:
            self._api.replace("leases", self._namespace, released_lease(found, self._stamp()))
        except (ApiUnreachable, ApiError) as error:
            log.info("the Lease of namespace %s expires by itself: %s", self._namespace, error)

    # ---- state ------------------------------------------------------------------------------------------------------

    def problem(self) -> str | None:
        """Return why this engine may not write now, as sentences; None if it may."""
        if self._is_ready and self._is_leader():
            return None
        return self._problem

    @property
    def is_refused(self) -> bool:
        """True if another engine had the Lease when this one last asked."""
        return self._is_refused

    def check(self) -> None:
        """Raise Fenced unless this engine is the leader at this moment. Sends no request."""
        if not self._is_leader():
            raise Fenced(self._problem)

    def fence(self) -> Callable[[], None]:
        """Return a check that raises Fenced once the present term is over, also in a later term of this engine."""
        term = self._term

        def check() -> None:
            self.check()
            if self._term != term:
                raise Fenced("the term in which this began is over")

        return check

    def _is_leader(self) -> bool:
        return self._term is not None and self._now() < self._valid_until_s

    @property
    def ledger(self) -> Ledger:
        """Ledger as last read or written."""
        return self._ledger

    def commit(self, change: Callable[[Ledger], Ledger]) -> None:
        """Change the ledger: the commit point of a placement. Raises Fenced, and what `change` raises.

        Sends no request if the change leaves the ledger as it is.
        """
        with self._ledger_lock:
            for _ in range(SWAPS):
                self.check()
                assert self._term is not None, "the leader has a term"
                try:
                    self._ledger.check_term(self._term)
                except Fenced as error:
                    self._lose(f"{str(error)[0].upper()}{str(error)[1:]}.")
                    raise
                changed = change(self._ledger)
                if changed == self._ledger or self._swap(changed):
                    return
                self._read()
        raise Fenced("the pool's ledger was changed by others too often")

    # ---- election ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closed.is_set():
            self.step()
            self._is_closed.wait(self._timing.retry_s)

    def step(self) -> None:
        """Acquire or renew the Lease once."""
        sent_s = self._now()
        is_refused = False
        try:
            self._acquire()
            if self._is_closed.is_set():
                return
            self._valid_until_s = sent_s + self._timing.deadline_s
            if self._term is None:
                self._take_over()
            if not self._is_ready:
                self._elected()
                self._is_ready = True
        except LeaseHeld as error:
            is_refused = True
            self._lose(str(error))
        except Fenced as error:
            self._lose(f"The Lease of namespace {self._namespace} was lost: {error}.")
        except DlaasError as error:  # also what `elected` raises
            log.warning("leadership of namespace %s: %s", self._namespace, error)
            self._problem = f"This engine cannot renew its Lease of namespace {self._namespace}: {error}."
            if self._is_leader():
                self._problem = f"This engine cannot serve namespace {self._namespace}: {error}."
        self._is_refused = is_refused
        problem = self.problem()
        if problem != self._reported:
            self._reported = problem
            self._changed()

    def _lose(self, problem: str) -> None:
        self._problem, self._valid_until_s, self._is_ready = problem, -inf, False
        self._lease, self._term = None, None

    def _stamp(self) -> str:
        return stamp(datetime.now(UTC))

    def _acquire(self) -> None:
        """Write the Lease. Raises LeaseHeld while another engine has it."""
        for _ in range(ATTEMPTS):
            found = self._lease if self._lease is not None else self._get()
            try:
                if found is None:
                    body = lease(self._namespace, self._holder, self._stamp(), duration_s=self._timing.duration_s)
                    self._lease = self._api.create("leases", self._namespace, body)
                    self._term = None
                    return
                self._check_free(found)
                if holder_identity(found) != self._holder.identity:
                    self._term = None  # another engine may have written since
                body = renewed_lease(found, self._holder, self._stamp(), duration_s=self._timing.duration_s)
                self._lease = self._api.replace("leases", self._namespace, body)
                return
            except ApiError as error:
                self._lease = None
                if error.status not in (CONFLICT, NOT_FOUND):
                    raise
        raise LeaseHeld(f"Another engine has just begun to serve namespace {self._namespace}.")

    def _get(self) -> Json | None:
        try:
            return self._api.get("leases", self._namespace, LEASE)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def _check_free(self, found: Json) -> None:
        """Raise LeaseHeld unless the Lease is this engine's, released, expired, or of a process that is gone."""
        holder, now_s = holder_identity(found), self._now()
        if holder in ("", self._holder.identity) or self._was_predecessor(holder_of(found)):
            return
        spec = found["spec"]
        state = (holder, spec.get("renewTime"))
        if state != self._observed:
            self._observed, self._observed_s = state, now_s
        duration_s = int(spec.get("leaseDurationSeconds") or self._timing.duration_s)
        if now_s - self._observed_s < duration_s:
            raise LeaseHeld(_held_text(found, self._namespace, duration_s))

    def _was_predecessor(self, holder: Holder | None) -> bool:
        """Return whether a holder was an engine of this pool's directory on this machine whose process is gone.

        Pods on one node see only their own processes; their host names differ.
        """
        if holder is None:
            return False
        me = self._holder
        if (holder.pool, holder.boot, holder.host) != (me.pool, me.boot, me.host):
            return False
        return not is_alive(Identity(holder.pid, holder.start, holder.boot))

    # ---- ledger -----------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Raise the term of the ledger, so that writes of a former leader are refused."""
        with self._ledger_lock:
            for _ in range(SWAPS):
                self._read()
                if self._swap(self._ledger.take_over(self._holder.identity)):
                    self._term = self._ledger.term
                    return
        raise Fenced("another engine changes the pool's ledger")

    def _read(self) -> None:
        try:
            found = self._api.get("configmaps", self._namespace, LEDGER)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            self._ledger, self._version = Ledger(), ""
            return
        text = (found.get("data") or {}).get("ledger.json")
        if text is None:
            raise LedgerDamaged(f"configmap {self._namespace}/{LEDGER} has no ledger.json; restore it from a backup")
        self._ledger, self._version = parse_ledger(text), str(found["metadata"]["resourceVersion"])

    def _swap(self, ledger: Ledger) -> bool:
        """Write the ledger if it is still the one that was read. Return False if it is not."""
        body = ledger_config_map(self._namespace, ledger.to_text())
        try:
            if self._version:
                body["metadata"]["resourceVersion"] = self._version
                stored = self._api.replace("configmaps", self._namespace, body)
            else:
                stored = self._api.create("configmaps", self._namespace, body)
        except ApiError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                return False
            raise
        self._ledger, self._version = ledger, str(stored["metadata"]["resourceVersion"])
        return True


def _held_text(found: Json, namespace: str, duration_s: int) -> str:
    holder = holder_of(found)
    there = "" if holder is not None and holder.is_pod else f" there ({stop_command(holder)})"
    return (
        f"Another engine serves namespace {namespace}: {holder_text(found)}. Stop it{there}, or give this pool a "
        f"namespace of its own (jupyter dlaas pool use kubernetes --namespace NAME). If it is dead, this engine takes "
        f"over {duration_s} seconds after its last renewal."
    )
