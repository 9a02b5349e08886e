"""Leader's Lease and ledger at the API server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from dlaas_server.pools.kubernetes.api import Api, ApiError
from dlaas_server.pools.kubernetes.ledger import Fenced, Ledger, LedgerDamaged, parse_ledger
from dlaas_server.pools.kubernetes.manifests.names import LEASE, LEDGER, Json
from dlaas_server.pools.kubernetes.manifests.pool_manifests import LEASE_S, lease, ledger_config_map
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["LeaseHeld", "LedgerStore"]

SWAPS: Final = 5
"""Number of attempts of one change, in case that this engine itself changed the ledger meanwhile."""
TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
CONFLICT: Final = 409
NOT_FOUND: Final = 404


class LeaseHeld(DlaasError):
    """Another engine is the pool's leader."""

    code = "lease_held"


class LedgerStore:
    """Ledger as the leader changes it. Its methods block; safe for use by several threads."""

    def __init__(self, api: Api, namespace: str, holder: str, *, now: Callable[[], datetime] | None = None) -> None:
        self._api, self._namespace, self._holder = api, namespace, holder
        self._now = now or (lambda: datetime.now(UTC))
        self._lock = threading.Lock()
        self._ledger = Ledger()
        self._version = ""
        self._term = 0
        self._lease: Json | None = None

    @property
    def ledger(self) -> Ledger:
        """Ledger as last read or written."""
        return self._ledger

    def take_office(self) -> Ledger:
        """Become the leader, and raise the ledger's term so that a former leader's writes are refused.

        Raises LeaseHeld while another engine renews its Lease.
        """
        with self._lock:
            self._acquire()
            for _ in range(SWAPS):
                self._read()
                if self._swap(self._ledger.take_over(self._holder)):
                    self._term = self._ledger.term
                    return self._ledger
        raise Fenced("another engine took over the pool at the same time")

    def renew(self) -> None:
        """Renew the Lease. Raises LeaseHeld if another engine has it."""
        with self._lock:
            self._acquire()

    def commit(self, change: Callable[[Ledger], Ledger]) -> Ledger:
        """Change the ledger: the commit point of a placement. Raises Fenced, and what `change` raises."""
        with self._lock:
            for _ in range(SWAPS):
                self._ledger.check_term(self._term)
                if self._swap(change(self._ledger)):
                    return self._ledger
                self._read()
        raise Fenced("another engine changes the pool's ledger")

    # ---- shell -----------------------------------------------------------------------------------------------------

    def _acquire(self) -> None:
        now = self._now()
        stamp = now.strftime(TIME)
        found = self._lease
        if found is None:
            try:
                found = self._api.get("leases", self._namespace, LEASE)
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
                self._create_lease(stamp)
                return
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity")
        if holder not in (None, "", self._holder) and not _has_expired(spec, now):
            self._lease = None
            raise LeaseHeld(f"the engine {holder} serves the pool in namespace {self._namespace}")
        is_ours = holder == self._holder
        spec = {**spec, "holderIdentity": self._holder, "renewTime": stamp, "leaseDurationSeconds": LEASE_S}
        if not is_ours:
            spec |= {"acquireTime": stamp, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        try:
            self._lease = self._api.replace("leases", self._namespace, {**found, "spec": spec})
        except ApiError as error:
            self._lease = None
            if error.status in (CONFLICT, NOT_FOUND):
                raise LeaseHeld("another engine has just become the pool's leader") from error
            raise

    def _create_lease(self, stamp: str) -> None:
        try:
            body = lease(self._namespace, self._holder, stamp, transitions=0)
            self._lease = self._api.create("leases", self._namespace, body)
        except ApiError as error:
            if error.status == CONFLICT:
                raise LeaseHeld("another engine has just become the pool's leader") from error
            raise

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


def _has_expired(spec: Json, now: datetime) -> bool:
    try:
        renewed = datetime.strptime(spec["renewTime"], TIME).replace(tzinfo=UTC)
    except (KeyError, TypeError, ValueError):
        return True
    return now - renewed > timedelta(seconds=float(spec.get("leaseDurationSeconds") or LEASE_S))
