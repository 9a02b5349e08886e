"""Jobs that are gone when their test is: the same as a learner's."""

from __future__ import annotations

from tests.learner.conftest import job, plain_job, zygotes

__all__ = ["job", "plain_job", "zygotes"]
