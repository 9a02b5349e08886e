"""Networks of their own for isolated jobs, made by network namespaces. Root only."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable
from typing import Final

import pytest

__all__ = ["in_ipv6_network", "needs_namespaces"]

CLONE_NEWNET: Final = 0x40000000
TOOLS: Final = ("ip", "setpriv", "unshare")

needs_namespaces: Final = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, TOOLS)), reason="needs root, and the commands ip, setpriv, unshare"
)


def in_ipv6_network(addresses: Iterable[str], body: Callable[[], None]) -> None:
    """Call a function in a thread whose network has these IPv6 addresses, and no IPv4 at all.

    The processes and threads that it starts belong to the same network.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "unshare")
            _ip("link", "set", "lo", "up")
            _ip("address", "delete", "127.0.0.1/8", "dev", "lo")
            for address in addresses:
                _ip("-6", "address", "add", f"{address}/128", "dev", "lo", "nodad")
            body()
        except BaseException as error:  # noqa: BLE001  # raised in the test's own thread
            errors.append(error)

    thread = threading.Thread(target=run, name="network")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
