"""The control plane of a test cluster: etcd, API server, controller-manager and scheduler on a loopback address.

Each cluster has a loopback network 127.N.0.0/16 of its own, so that clusters can run side by side: the control plane
is at 127.N.0.1, node M at 127.N.M.1, and its pods are at 127.N.M.2 and so on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import random
import secrets
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from tests.kubernetes.api import Api, ApiError
from tests.kubernetes.binaries import Binaries
from tests.kubernetes.certificates import Authority, Credentials, write_signing_key

__all__ = ["ControlPlane", "StartFailed"]

LAUNCHER: Final = Path(__file__).with_name("launcher.py")
API_PORT, ETCD_PORT, ETCD_PEER_PORT, LOCK_PORT = 6443, 2379, 2380, 6440
NETWORKS: Final = range(64, 250)
START_S: Final = 240.0
"""Far more than the 5 s that a quiet machine takes: the tests also run on busy ones."""
POLL_S: Final = 0.05
AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
    ],
}
"""Requests of service accounts that change something."""
NODE_GRACE_S: Final = 8
"""Time without a renewed Lease after which a node counts as lost; 50 s by default."""
LOG_LINES: Final = 20


class StartFailed(Exception):
    """The control plane did not start."""


class ControlPlane:
    """The programs of one cluster, with certificates, tokens and a kubeconfig of their own in `folder`."""

    def __init__(self, binaries: Binaries, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "admin.kubeconfig"
        self.network, self._lock = _claim_network()
        self.address = f"{self.network}.0.1"
        self.server = f"https://{self.address}:{API_PORT}"
        self.authority = Authority(folder)
        self.token = secrets.token_hex(16)
        self.started_in_s: float | None = None
        self._binaries = binaries
        self._launcher: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ready: dict[str, asyncio.Event] = {}
        self._ended: list[str] = []

    # ---- start and end ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all programs and wait until the cluster accepts pods. Raises StartFailed."""
        began_s = time.monotonic()
        command = [sys.executable, "-I", "-S", str(LAUNCHER), str(self.folder)]
        pipe = asyncio.subprocess.PIPE
        self._launcher = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        self._reader = asyncio.create_task(self._read_events())
        try:
            async with asyncio.timeout(START_S):
                await self._start_programs()
        except TimeoutError as error:
            raise StartFailed(f"the control plane is not ready after {START_S:g} s\n{self.last_logs()}") from error
        self.started_in_s = time.monotonic() - began_s

    async def stop(self) -> None:
        """Kill all programs and delete the folder."""
        if self._launcher is not None:
            assert self._launcher.stdin is not None
            self._launcher.stdin.close()
            await self._launcher.wait()
        if self._reader is not None:
            await self._reader
        self._lock.close()

    async def _start_programs(self) -> None:
        write_signing_key(self.folder / "tokens.key")
        (self.folder / "tokens.csv").touch(mode=0o600)
        (self.folder / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n", encoding="ascii")
        self._write_kubeconfig(self.kubeconfig, {"token": self.token})
        await self._launch("etcd", [str(self._binaries.etcd), *self._etcd_flags()])
        await self._launch("kube-apiserver", self._component("kube-apiserver", self._apiserver_flags()))
        await self._ready["kube-apiserver"].wait()
        self._raise_if_ended()
        headers = {"Authorization": f"Bearer {self.token}"}
        async with Api(self.server, self.authority.certificate, headers=headers) as api:
            await self._wait_until_ready(api)
            await self._launch(
                "kube-controller-manager", self._component("kube-controller-manager", self._manager_flags())
            )
            await self._launch("kube-scheduler", self._component("kube-scheduler", self._scheduler_flags()))
            # Pods need their namespace's service account, which the controller-manager creates.
            await api.wait_for("serviceaccounts", "default", "default", lambda account: account is not None)
        self._raise_if_ended()

    async def _wait_until_ready(self, api: Api) -> None:
        """Wait until the API server's start-up hooks have run; it serves, but sends no event for this."""
        while True:
            with contextlib.suppress(ApiError, aiohttp.ClientError):
                await api.read_text("/readyz")
                return
            self._raise_if_ended()
            await asyncio.sleep(POLL_S)

    # ---- programs ----------------------------------------------------------------------------------------------------

    async def _launch(self, name: str, argv: Sequence[str]) -> None:
        assert self._launcher is not None
        assert self._launcher.stdin is not None
        self._ready[name] = asyncio.Event()
        request = {"name": name, "argv": list(argv), "log": str(self.log_of(name))}
        self._launcher.stdin.write((json.dumps(request) + "\n").encode())
        await self._launcher.stdin.drain()

    async def _read_events(self) -> None:
        assert self._launcher is not None
        assert self._launcher.stdout is not None
        async for line in self._launcher.stdout:
            event = json.loads(line)
            if event["event"] == "ended":
                self._ended.append(event["name"])
            self._ready[event["name"]].set()

    def _raise_if_ended(self) -> None:
        if self._ended:
            raise StartFailed(f"{', '.join(self._ended)} ended during the start\n{self.last_logs(self._ended)}")

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def audited(self, namespace: str) -> Sequence[tuple[str, str, int]]:
        """Return verb, object and status of all requests by which service accounts changed a namespace, in order."""
        found = []
        for line in (self.folder / "audit.log").read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            about = event.get("objectRef", {})
            if about.get("namespace") == namespace:
                name = f"{about['resource']}/{about.get('name', '')}"
                found.append((str(event["verb"]), name, int(event["responseStatus"]["code"])))
        return found

    def last_logs(self, names: Sequence[str] = ()) -> str:
        """Return the ends of the programs' logs."""
        return "\n".join(_last_lines(self.log_of(name)) for name in names or self._ready)

    def _component(self, name: str, flags: Iterable[str]) -> list[str]:
        return [str(self._binaries.controlplane), name, *flags]

    def _etcd_flags(self) -> Iterator[str]:
        client, peer = (f"http://{self.address}:{port}" for port in (ETCD_PORT, ETCD_PEER_PORT))
        yield f"--data-dir={self.folder / 'etcd'}"
        yield "--unsafe-no-fsync"
        yield f"--listen-client-urls={client}"
        yield f"--advertise-client-urls={client}"
        yield f"--listen-peer-urls={peer}"
        yield f"--initial-advertise-peer-urls={peer}"
        yield f"--initial-cluster=default={peer}"

    def _apiserver_flags(self) -> Iterator[str]:
        serving = self.authority.issue(
            "apiserver", "kube-apiserver", addresses=[self.address, "kubernetes.default.svc"]
        )
        kubelet = self.authority.issue("apiserver-kubelet", "apiserver-kubelet", ["system:masters"])
        yield f"--etcd-servers=http://{self.address}:{ETCD_PORT}"
        yield f"--bind-address={self.address}"
        yield f"--secure-port={API_PORT}"
        yield "--advertise-address=192.0.2.1"  # for documentation only: nothing is published under it
        yield "--endpoint-reconciler-type=none"
        yield f"--cert-dir={self.folder}"
        yield from _tls_flags("", serving)
        yield f"--client-ca-file={self.authority.certificate}"
        yield f"--token-auth-file={self.folder / 'tokens.csv'}"
        yield "--authorization-mode=Node,RBAC"
        yield "--enable-admission-plugins=NodeRestriction"
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY), encoding="utf-8")
        yield f"--audit-policy-file={policy}"
        yield f"--audit-log-path={self.folder / 'audit.log'}"
        yield "--service-account-issuer=https://kubernetes.default.svc"
        yield f"--service-account-key-file={self.folder / 'tokens.key'}"
        yield f"--service-account-signing-key-file={self.folder / 'tokens.key'}"
        yield "--service-cluster-ip-range=10.96.0.0/16"
        yield "--kubelet-preferred-address-types=InternalIP"
        yield f"--kubelet-certificate-authority={self.authority.certificate}"
        yield f"--kubelet-client-certificate={kubelet.certificate}"
        yield f"--kubelet-client-key={kubelet.key}"

    def _manager_flags(self) -> Iterator[str]:
        name = "kube-controller-manager"
        yield from self._client_flags(name)
        yield f"--bind-address={self.address}"
        yield "--leader-elect=false"
        yield "--use-service-account-credentials=true"
        yield f"--service-account-private-key-file={self.folder / 'tokens.key'}"
        yield f"--root-ca-file={self.authority.certificate}"
        yield "--node-monitor-period=1s"
        yield f"--node-monitor-grace-period={NODE_GRACE_S}s"
        yield "--kube-api-qps=500"
        yield "--kube-api-burst=1000"

    def _scheduler_flags(self) -> Iterator[str]:
        """Return flags of a scheduler that tries a pod again after at most a second."""
        client = self.authority.issue("kube-scheduler", "system:kube-scheduler")
        kubeconfig = self.folder / "kube-scheduler.kubeconfig"
        self._write_kubeconfig(kubeconfig, _client_files(client))
        settings = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000},
            "leaderElection": {"leaderElect": False},
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
        }
        path = self.folder / "kube-scheduler.config"
        path.write_text(json.dumps(settings), encoding="utf-8")
        yield f"--config={path}"
        yield f"--bind-address={self.address}"
        yield f"--authentication-kubeconfig={kubeconfig}"
        yield f"--authorization-kubeconfig={kubeconfig}"
        yield f"--cert-dir={self.folder}"

    def _client_flags(self, name: str) -> Iterator[str]:
        """Return flags by which a component is a client of the API server."""
        client = self.authority.issue(name, f"system:{name}")
        kubeconfig = self.folder / f"{name}.kubeconfig"
        self._write_kubeconfig(kubeconfig, _client_files(client))
        for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"):
            yield f"--{flag}={kubeconfig}"
        yield f"--cert-dir={self.folder}"

    def _write_kubeconfig(self, path: Path, user: dict[str, str]) -> None:
        cluster = {"server": self.server, "certificate-authority": str(self.authority.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def _client_files(credentials: Credentials) -> dict[str, str]:
    return {"client-certificate": str(credentials.certificate), "client-key": str(credentials.key)}


def _tls_flags(prefix: str, credentials: Credentials) -> Iterator[str]:
    yield f"--{prefix}tls-cert-file={credentials.certificate}"
    yield f"--{prefix}tls-private-key-file={credentials.key}"


def _claim_network() -> tuple[str, socket.socket]:
    """Choose a loopback network that no other test cluster uses, and hold it by a listening socket."""
    for number in random.sample(NETWORKS, len(NETWORKS)):
        network = f"127.{number}"
        lock = socket.socket()
        try:
            lock.bind((f"{network}.0.1", LOCK_PORT))
            lock.listen()
            for port in (API_PORT, ETCD_PORT, ETCD_PEER_PORT):
                with socket.socket() as probe:  # a cluster whose test process was killed may still be ending
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((f"{network}.0.1", port))
        except OSError as error:
            lock.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return network, lock
    raise StartFailed("all loopback networks are in use")


def _last_lines(path: Path) -> str:
    if not path.is_file():
        return f"== {path.name}: no log"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([f"== {path.name}", *lines[-LOG_LINES:]])
