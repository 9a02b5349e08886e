"""Rights that the pools of this process use, from their requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from dlaas_server.pools.kubernetes.api import Api, connect
from dlaas_server.pools.kubernetes.manifests.access import CLUSTER_RULES, ROLE_RULES, Access, access_of, accesses

__all__ = ["Rights"]

OF_ALL_USERS: Final = "selfsubjectaccessreviews"
"""Question about one's own rights, which every user may ask."""


class Rights:
    """Rights used by pools, in their namespaces and in the whole cluster."""

    def __init__(self) -> None:
        self.in_namespace: set[Access] = set()
        self.in_cluster: set[Access] = set()

    def record(self, method: str, target: str) -> None:
        access = access_of(method, target)
        if access.resource != OF_ALL_USERS:
            (self.in_namespace if "/namespaces/" in target else self.in_cluster).add(access)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what the connections request that pools open meanwhile."""

        def recorded(*arguments: Any, **options: Any) -> Api:
            api = connect(*arguments, **options)
            api.recorder = self.record
            return api

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dlaas_server.pools.kubernetes.picture.connect", recorded)
            yield

    def check(self) -> None:
        """Raise AssertionError for a right that no manifest grants."""
        assert self.in_namespace <= set(accesses(ROLE_RULES))
        assert self.in_cluster <= set(accesses(CLUSTER_RULES))
