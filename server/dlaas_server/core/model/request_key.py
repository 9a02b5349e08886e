"""Request key: everything that a waiting job's start depends on, besides its age and the knowledge of its length.

Jobs with equal keys are interchangeable. Each field of `JobSpec` is listed as relevant or irrelevant, so that a new
field cannot be left out.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from dlaas_server.core.model.job import Job

__all__ = ["IRRELEVANT_FIELDS", "RELEVANT_FIELDS", "request_key"]

RELEVANT_FIELDS: Final = (
    "gpus_per_learner",
    "learners_min",
    "queue",
    "spot",
    "cpus_per_learner",
    "memory_bytes_per_learner",
    "gpu_kind",
    "placement",
)
"""Fields of `JobSpec` that are part of the key. The job's present priority stands for that of its submission."""
IRRELEVANT_FIELDS: Final = frozenset(
    {
        "name", "framework", "command", "interpreter", "python", "directory", "script", "variables",  # program
        "origin", "notes", "cells", "outputs",
        "metric_patterns", "autolog", "hang_after_s", "checkpoint_every_s", "retries", "max_time_s", "epochs",  # run
        "learners_max", "elastic", "condition", "condition_value", "price_per_h", "schedule",  # size once it runs
        "priority",  # of the submission: `Job.priority` is the present one
    }
)  # fmt: skip
"""Fields of `JobSpec` that do not affect whether and where a waiting job starts with its least size."""

_RELEVANT: Final = attrgetter(*RELEVANT_FIELDS)


def request_key(job: Job) -> tuple[object, ...]:
    """Return a value that is equal for jobs with equal requests."""
    return _RELEVANT(job.spec), job.priority, job.not_before_s
