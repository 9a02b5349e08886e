"""Objects of a job at the API server: creation in order, release of the gang, deletion by the anchor."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from dlaas_server.pools.kubernetes.api import Api, ApiError, ApiUnreachable
from dlaas_server.pools.kubernetes.manifests.job_manifests import JobObjects, anchor, job_objects, owner_of
from dlaas_server.pools.kubernetes.manifests.names import (
    ANNOTATION_JOB,
    GATE,
    Json,
)
from dlaas_server.pools.kubernetes.manifests.package_archive import Package, package_config_map
from dlaas_server.pools.kubernetes.manifests.pod_manifests import LearnerPod, learner_pod
from dlaas_server.pools.kubernetes.pod_waits import PodWait, wait_of_refusal

__all__ = [
    "ObjectRefused",
    "create_job",
    "create_learners",
    "delete_job",
    "delete_pods",
    "ensure_package",
    "release_gates",
    "released_members",
    "write_released",
]

T = TypeVar("T")
PARALLEL: Final = 8
LEFTOVERS_S: Final = 20.0
"""Time for the garbage collector to delete objects of a former job with the same name."""
POLL_S: Final = 0.2
CONFLICT: Final = 409
_UNGATED: Final = {"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}
"""Strategic merge patch: removes this gate and leaves those of others, such as Kueue."""


class ObjectRefused(ApiError):
    """Object that the API server did not accept; `wait` says why in words."""

    def __init__(self, error: ApiError, wait: PodWait) -> None:
        super().__init__(error.status, error.reason, str(error))
        self.wait = wait


def ensure_package(api: Api, namespace: str, package: Package) -> None:
    """Create the ConfigMap of the package, unless it exists: its name follows from its content."""
    try:
        api.create("configmaps", namespace, package_config_map(package, namespace))
    except ApiError as error:
        if error.status != CONFLICT or error.reason != "AlreadyExists":
            raise


def create_job(
    api: Api, job: JobObjects, *, sleep: Callable[[float], None] = time.sleep, leftovers_s: float = LEFTOVERS_S
) -> Json:
    """Create all objects of a job that do not exist yet, in order, with learners gated. Return the anchor.

    Repeatable at every point. Raises ObjectRefused, in words, if the API server does not accept one.
    """
    namespace = job.pods.settings.namespace
    owner, is_new = _create_anchor(api, namespace, job)
    for resource, manifest in job_objects(job, owner):
        waited_s = 0.0
        while not _create(api, resource, namespace, manifest) and is_new:
            if waited_s >= leftovers_s:
                name = manifest["metadata"]["name"]
                raise ApiUnreachable(f"{manifest['kind']} {namespace}/{name} of an earlier job is still being deleted")
            sleep(POLL_S)
            waited_s += POLL_S
    return owner


def _create_anchor(api: Api, namespace: str, job: JobObjects) -> tuple[Json, bool]:
    body = anchor(job)
    try:
        return api.create("configmaps", namespace, body), True
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise ObjectRefused(error, wait_of_refusal(body, error.reason, str(error))) from error
    found = api.get("configmaps", namespace, body["metadata"]["name"])
    name = f"configmap {namespace}/{body['metadata']['name']}"
    if (found["metadata"].get("annotations") or {}).get(ANNOTATION_JOB) != job.pods.job:
        raise ApiError(CONFLICT, "AlreadyExists", f"{name} exists and does not belong to job {job.pods.job}")
    if (found.get("data") or {}).get("spec_sha256") != job.spec_sha256:
        raise ApiError(CONFLICT, "AlreadyExists", f"{name} belongs to another job with the name {job.pods.job}")
    return found, False


def _create(api: Api, resource: str, namespace: str, manifest: Json) -> bool:
    """Create an object. Return False if one with its name exists."""
    try:
        api.create(resource, namespace, manifest)
    except ApiError as error:
        if error.reason == "AlreadyExists":
            return False
        raise ObjectRefused(error, wait_of_refusal(manifest, error.reason, str(error))) from error
    return True


def write_released(api: Api, namespace: str, name: str, members: Iterable[int]) -> None:
    """Record at the anchor which members were released: their pods may have run, so they are never created again."""
    api.patch("configmaps", namespace, name, {"data": {"released": json.dumps(sorted(members))}})


def released_members(anchor_object: Json) -> frozenset[int]:
    """Return the members that were released, from the anchor."""
    return frozenset(map(int, json.loads((anchor_object.get("data") or {}).get("released", "[]"))))


def create_learners(api: Api, job: JobObjects, owner: Json, members: Sequence[LearnerPod]) -> None:
    """Create gated pods of further learners of a job, at the same time. Raises ObjectRefused."""
    namespace, reference = job.pods.settings.namespace, owner_of(owner)
    _each(lambda one: _create(api, "pods", namespace, learner_pod(job.pods, reference, one)), members)


def release_gates(api: Api, namespace: str, pods: Sequence[str]) -> None:
    """Remove our gate from all pods of a gang, at the same time. Repeatable: a removed gate stays removed."""
    _each(lambda pod: api.patch("pods", namespace, pod, _UNGATED), pods)


def delete_pods(api: Api, namespace: str, pods: Iterable[Json]) -> None:
    """Delete pods, if they still are the same ones."""
    _each(lambda pod: api.delete("pods", namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"]), pods)


def delete_job(api: Api, namespace: str, name: str, *, uid: str | None = None) -> None:
    """Delete a job's anchor; the garbage collector deletes everything that it owns."""
    api.delete("configmaps", namespace, name, uid=uid)


def _each(work: Callable[[T], object], items: Iterable[T]) -> None:
    """Do the work for all items, some at a time. Raise the first error after all were tried."""
    given = list(items)
    if not given:
        return
    with ThreadPoolExecutor(min(PARALLEL, len(given)), thread_name_prefix="kubernetes") as threads:
        running = [threads.submit(work, item) for item in given]
    for done in running:
        done.result()
