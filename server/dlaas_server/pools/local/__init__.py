"""The pool on this machine: jobs are directories, guardians and learners are processes."""

from __future__ import annotations

from dlaas_server.pools.local.pool import LocalPool

__all__ = ["LocalPool"]
