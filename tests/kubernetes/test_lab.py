"""JupyterLab in the cluster, from the shipped manifests: its pod holds engine and guardians, and may be replaced."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlaas_server.pools.kubernetes.__main__ import main
from jupyter_dlaas.client.discovery import ServerEndpoint
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.transfer.results import load
from jupyter_dlaas.wire.protocol import JobSpec, JobView, State, Submit
from tests.kubernetes.api import Json
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import Namespace
from tests.notebook_e2e.rooms import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LAB = "registry.example.com/lab:1"
NAME = "jupyter-dlaas-engine"
COUNT = """
import time
import jupyter_dlaas as dlaas
run = dlaas.run()
for epoch in run.epochs(10**6):
    print("epoch", epoch, flush=True)
    time.sleep(0.05)
"""


class Lab:
    """JupyterLab as its administrator has applied it. The folder stands for a network disk."""

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        self._namespace, self.folder = namespace, folder
        self._volume = f"lab-{uuid.uuid4().hex[:8]}"

    def apply(self) -> None:
        """Print the manifests, and apply them by kubectl."""
        namespace = self._namespace
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            words = ["--namespace", namespace.name, "--cluster-view", "--lab", LAB, "--image", namespace.cluster.image]
            assert main(["manifests", *words]) == 0
        # This cluster has no DNS, and its pods share this machine's ports.
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        shown = text.getvalue().replace(f"{NAME}.{namespace.name}.svc", "127.0.0.1").replace("8888", port)
        file = self.folder.parent / "manifests.yaml"
        file.write_text(shown, encoding="utf-8")
        self._create_volume()
        namespace.kubectl("apply", "--filename", str(file))

    def _create_volume(self) -> None:
        spec: Json = {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": self._namespace.name, "name": NAME},
            "hostPath": {"path": str(self.folder)},
        }
        body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": self._volume}, "spec": spec}
        cluster = self._namespace.cluster
        cluster.loop.run(cluster.api.create("persistentvolumes", None, body))

    def remove_volume(self) -> None:
        cluster = self._namespace.cluster
        cluster.loop.run(cluster.api.delete("persistentvolumes", None, self._volume))

    def pod(self) -> str:
        """Return the name of the pod, once it runs."""
        return str(until(self._running_pod))

    def _running_pod(self) -> str | None:
        arguments = ("get", "pods", "--selector", "jupyter-dlaas/role=engine", "--output", "json")
        for pod in json.loads(self._namespace.kubectl(*arguments))["items"]:
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                return str(pod["metadata"]["name"])
        return None

    def client(self) -> Client:
        """Return a client of the Jupyter server, with the token that it has chosen."""
        file = until(lambda: next(self._servers(), None))
        server = until(lambda: read_json(file))
        return Client(at=[ServerEndpoint("127.0.0.1", server["port"], server["base_url"], server["token"])])

    def _servers(self) -> Iterator[Path]:
        return self.folder.glob(".local/share/jupyter/runtime/jpserver-*.json")

    def replace_pod(self) -> None:
        """Delete the pod, and wait for the one that takes its place."""
        former = self.pod()
        self._namespace.delete("pods", former)
        self._namespace.wait_gone("pods", former)
        for file in self._servers():
            file.unlink()
        assert self.pod() != former


@pytest.fixture
def lab(namespace: Namespace, own_cluster: OwnCluster) -> Iterator[Lab]:
    for node in own_cluster.nodes.values():
        node.images.with_product.add(LAB)
    with tempfile.TemporaryDirectory(prefix="dlaas-lab-") as outside:
        folder = Path(outside)
        folder.chmod(0o755)
        (folder / "disk").mkdir()
        (folder / "disk").chmod(0o777)
        made = Lab(namespace, folder / "disk")
        made.apply()
        yield made
        made.remove_volume()


def submit(client: Client, name: str, source: str, *outputs: str) -> str:
    spec = JobSpec(name=name, outputs=outputs)
    return client.submit(Submit(key=f"key-{uuid.uuid4()}", spec=spec, source=source)).id


def reaches(client: Client, job: str, state: State) -> JobView:
    view: JobView = until(lambda: v if (v := client.job(job)).state == state or v.state.is_final else None)
    assert view.state == state, f"{view.state}: {view.failure} {view.reason}"
    return view


def epochs(client: Client, job: str) -> int:
    return str(client.log(job)["text"]).count("epoch")


def test_a_job_trains_on_while_the_engines_pod_is_replaced(lab: Lab, namespace: Namespace) -> None:
    client = lab.client()
    job = submit(client, "count", COUNT)
    reaches(client, job, State.PROCESSING)
    learner = namespace.get("pods", f"{job}-m0")["metadata"]["uid"]

    lab.replace_pod()
    client = lab.client()
    known = until(lambda: epochs(client, job))
    until(lambda: epochs(client, job) > known)
    view = reaches(client, job, State.PROCESSING)
    assert view.restarts == 0
    assert namespace.get("pods", f"{job}-m0")["metadata"]["uid"] == learner

    client.act(job, "halt")
    reaches(client, job, State.HALTED)
    namespace.wait_gone("pods", f"{job}-m0")
    short = submit(client, "short", "answer = 6 * 7", "answer")
    reaches(client, short, State.COMPLETED)
    assert load(client.result(short, "answer")) == 42
