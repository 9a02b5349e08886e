"""Lease of the namespace's leader: which engine serves the pool there, and since when. Pure."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from dlaas_server.pools.kubernetes.manifests.names import LEASE, MANAGED_BY, Json

__all__ = [
    "Holder",
    "holder_identity",
    "holder_of",
    "holder_text",
    "is_renewed",
    "lease",
    "released_lease",
    "renewed_lease",
    "stamp",
    "stop_command",
]

ANNOTATION: Final = "jupyter-dlaas/engine"
"""Annotation with the engine that holds the Lease, as JSON."""
TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Engine as its Lease describes it."""

    pool: str
    """Unique id of the pool's directory."""
    directory: str
    """The pool's directory on the engine's machine, as in `--pool DIRECTORY`."""
    user: str
    host: str
    """Name of the machine, or of the pod if the engine runs in one."""
    is_pod: bool
    pid: int
    start: int
    boot: str

    @property
    def identity(self) -> str:
        """Unique name of the engine's process, as `kubectl get lease` shows it."""
        text = f"{self.pool} {self.boot} {self.pid} {self.start}"
        return f"{self.host}_{self.pid}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def stamp(at: datetime) -> str:
    """Return a time as a Lease has it: RFC 3339 with microseconds."""
    return at.astimezone(UTC).strftime(TIME)


def lease(namespace: str, holder: Holder, now: str, *, duration_s: int) -> Json:
    """Return the Lease of a namespace that had none."""
    metadata = {"name": LEASE, "namespace": namespace, "labels": dict(MANAGED_BY)}
    empty: Json = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
    return renewed_lease(empty, holder, now, duration_s=duration_s)


def renewed_lease(found: Json, holder: Holder, now: str, *, duration_s: int) -> Json:
    """Return a Lease as its holder renews it, or as a new holder acquires it."""
    spec = {
        **(found.get("spec") or {}),
        "holderIdentity": holder.identity,
        "renewTime": now,
        "leaseDurationSeconds": duration_s,
    }
    if holder_identity(found) != holder.identity:
        spec["acquireTime"] = now
        spec["leaseTransitions"] = int(spec.get("leaseTransitions", -1)) + 1
    metadata = found["metadata"]
    annotations = {**(metadata.get("annotations") or {}), ANNOTATION: json.dumps(asdict(holder))}
    return {**found, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def released_lease(found: Json, now: str) -> Json:
    """Return a Lease that its holder has released, so that another engine need not wait until it expires."""
    annotations = {key: value for key, value in found["metadata"]["annotations"].items() if key != ANNOTATION}
    spec = {**found["spec"], "holderIdentity": "", "renewTime": now}
    return {**found, "metadata": {**found["metadata"], "annotations": annotations}, "spec": spec}


def holder_identity(found: Json) -> str:
    """Return the identity of the engine that holds a Lease; "" if none does."""
    return str((found.get("spec") or {}).get("holderIdentity") or "")


def holder_of(found: Json) -> Holder | None:
    """Return the engine that a Lease describes; None if it describes none."""
    try:
        holder = Holder(**json.loads(found["metadata"]["annotations"][ANNOTATION]))
    except (KeyError, TypeError, ValueError):
        return None
    return holder if holder.identity == holder_identity(found) else None


def holder_text(found: Json) -> str:
    """Return which engine holds a Lease, and since when: "process 7 on host ws-3 (pool /x of ana), since …"."""
    holder, spec = holder_of(found), found.get("spec") or {}
    since = f", since {moment:%Y-%m-%d %H:%M} UTC" if (moment := _time(spec.get("acquireTime"))) is not None else ""
    if holder is None:
        return f"{holder_identity(found)}{since}"
    where = f"in pod {holder.host}" if holder.is_pod else f"on host {holder.host}"
    return f"process {holder.pid} {where} (pool {holder.directory} of {holder.user}){since}"


def stop_command(holder: Holder | None) -> str:
    """Return the command that stops an engine, on its machine."""
    return "jupyter dlaas engine stop" + ("" if holder is None else f" --pool {shlex.quote(holder.directory)}")


def is_renewed(found: Json, now: datetime) -> bool:
    """Return whether an engine holds a Lease and has renewed it in time, by the clocks of both machines."""
    spec = found.get("spec") or {}
    renewed = _time(spec.get("renewTime"))
    if not holder_identity(found) or renewed is None:
        return False
    return now - renewed <= timedelta(seconds=float(spec.get("leaseDurationSeconds") or 0))


def _time(text: object) -> datetime | None:
    try:
        return datetime.strptime(str(text), TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
