"""Objects of jobs and of the pool, as they are sent to the API server. Pure."""

from __future__ import annotations
