"""Names, labels and annotations of the pool's objects."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

__all__ = [
    "ANNOTATION_JOB",
    "GATE",
    "LABEL_GENERATION",
    "LABEL_JOB",
    "LABEL_MEMBER",
    "LABEL_ROLE",
    "LEASE",
    "LEDGER",
    "MANAGED_BY",
    "ROLE_ENGINE",
    "ROLE_GUARDIAN",
    "ROLE_LEARNER",
    "Json",
    "described",
    "guardian_name",
    "learner_name",
    "object_name",
    "selector",
]

Json = dict[str, Any]

GATE: Final = "jupyter-dlaas/gang"
"""Scheduling gate of learner pods: removed from all pods of a gang together."""
LABEL_JOB: Final = "jupyter-dlaas/job"
"""Label with the object name of the job."""
LABEL_GENERATION: Final = "jupyter-dlaas/generation"
LABEL_MEMBER: Final = "jupyter-dlaas/member"
LABEL_ROLE: Final = "jupyter-dlaas/role"
ROLE_ENGINE: Final = "engine"
ROLE_GUARDIAN: Final = "guardian"
ROLE_LEARNER: Final = "learner"
ANNOTATION_JOB: Final = "jupyter-dlaas/job-id"
"""Annotation with the job's id, which may be too long for a label."""
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "jupyter-dlaas"}
LEASE: Final = "jupyter-dlaas-engine"
LEDGER: Final = "jupyter-dlaas-ledger"

_BASE_CHARACTERS: Final = 40
"""Longest name of a job's objects without the part for a member: names of pods and Services have at most 63."""
_VALID: Final = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_RESERVED: Final = re.compile(r"jupyter-dlaas-.*|kube-root-ca\b.*|.*-m\d+|.*-guardian|.*-[0-9a-f]{10}")
"""Names that could collide with other objects of the namespace."""


def object_name(job: str) -> str:
    """Return the name of a job's objects: its id where that is a valid DNS label, otherwise a shortened id with a hash.

    Different jobs have different names.
    """
    if _VALID.fullmatch(job) and not _RESERVED.fullmatch(job):
        return job
    slug = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")[: _BASE_CHARACTERS - 11].rstrip("-")
    slug = slug if slug[:1].isalpha() else f"job-{slug}"[: _BASE_CHARACTERS - 11].rstrip("-")
    return f"{slug}-{hashlib.sha256(job.encode()).hexdigest()[:10]}"


def guardian_name(name: str, epoch: int) -> str:
    """Return the name of a guardian's pod. Each guardian of a job has a number of its own."""
    return f"{name}-guardian" if epoch <= 1 else f"{name}-guardian-{epoch}"


def learner_name(name: str, member: int) -> str:
    """Return the name of a learner's pod. Members are never reused, so neither are these names."""
    return f"{name}-m{member}"


def selector(name: str | None = None) -> str:
    """Return the label selector of one job's objects, or of all objects of the pool."""
    managed = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
    return managed if name is None else f"{managed},{LABEL_JOB}={name}"


def described(item: Json) -> str:
    """Return kind, namespace and name of an object, as messages name it: "pod ml/digits-1-m0"."""
    metadata = item.get("metadata", {})
    namespace = metadata.get("namespace", "")
    kind = str(item.get("kind") or "pod").lower()
    return f"{kind} {namespace}/{metadata.get('name', '?')}" if namespace else f"{kind} {metadata.get('name', '?')}"
