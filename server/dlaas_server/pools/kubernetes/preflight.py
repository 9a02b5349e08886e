"""Check of a cluster before jobs run there: one finding in words for each thing that a job needs."""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, TextIO
from urllib.parse import urlsplit

from dlaas_server.pools.kubernetes.api import Api, ApiError, ApiUnreachable, own_address
from dlaas_server.pools.kubernetes.capacity import cluster_nodes, has_gpus, namespace_node, no_devices_text
from dlaas_server.pools.kubernetes.manifests.access import (
    CLUSTER_RULES,
    ROLE_RULES,
    Access,
    Rule,
    access_review,
    accesses,
)
from dlaas_server.pools.kubernetes.manifests.lease import holder_of, holder_text, is_renewed, stop_command
from dlaas_server.pools.kubernetes.manifests.names import LEASE, MANAGED_BY, Json
from dlaas_server.pools.kubernetes.manifests.settings import CapacityView, KubernetesSection
from dlaas_server.pools.kubernetes.pod_endings import end_of_pod
from dlaas_server.pools.kubernetes.pod_waits import wait_of_pod, wait_of_refusal
from dlaas_server.pools.kubernetes.watch import Change, Watch

__all__ = ["Finding", "missing_accesses", "preflight", "print_findings"]

MINOR_MIN: Final = 30
NOT_FOUND: Final = 404
PROBE: Final = "jupyter-dlaas-preflight"
PROBE_S: Final = 300.0
LEFT_S: Final = 30
"""Time after which the cluster ends the pod of a check that was killed."""
MARKS: Final = {True: "ok", False: "FAILED", None: "note"}
REACH_S: Final = 5
_PROGRAM: Final = f"""
import importlib.util, json, socket, sys

frameworks = [name for name in ("torch", "tensorflow", "jax") if importlib.util.find_spec(name)]
found = {{"python": list(sys.version_info[:3]), "frameworks": frameworks, "cut": None}}
host, _, port = sys.argv[1].rpartition(":")
try:
    socket.create_connection((host.strip("[]"), int(port)), {REACH_S}).close()
except OSError as error:
    found["cut"] = str(error)
with open("/dev/termination-log", "w") as file:
    file.write(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check. `is_ok` None: a notice that stops no job."""

    name: str
    is_ok: bool | None
    text: str
    advice: str = ""


def print_findings(findings: Iterable[Finding], *, as_json: bool = False, file: TextIO | None = None) -> bool:
    """Print findings as they come, and return whether none failed."""
    failed = False
    for finding in findings:
        failed = failed or finding.is_ok is False
        if as_json:
            print(json.dumps(asdict(finding)), file=file, flush=True)
            continue
        print(f"{MARKS[finding.is_ok]:>6}  {finding.text}", file=file, flush=True)
        if finding.advice:
            print(f"        {finding.advice}", file=file, flush=True)
    return not failed


def preflight(
    api: Api,
    settings: KubernetesSection,
    *,
    pool: str | None = None,
    probes_image: bool = True,
    probe_s: float = PROBE_S,
) -> Iterator[Finding]:
    """Yield findings one by one. After one that makes the others meaningless, the check ends.

    `pool`: id of the pool that is to use the namespace; None: the check is not for a certain one.
    """
    version = _version(api)
    yield version
    if not version.is_ok:
        return
    missing = list(missing_accesses(api, ROLE_RULES, settings.namespace))
    yield _rights(settings, missing)
    if missing:
        return
    yield _engine(api, settings, pool)
    sees_cluster = settings.view is not CapacityView.NAMESPACE and not list(missing_accesses(api, CLUSTER_RULES, None))
    yield _view(settings, sees_cluster)
    yield from _devices(api, settings, sees_cluster)
    if probes_image:
        yield from _image(api, settings, probe_s)


def _version(api: Api) -> Finding:
    try:
        found = api.request("GET", "/version")
    except (ApiUnreachable, ApiError) as error:
        advice = "Check the kubeconfig's context and your network: kubectl get --raw /version"
        return Finding(name="reachable", is_ok=False, text=f"The cluster cannot be reached: {error}", advice=advice)
    digits = "".join(c for c in str(found.get("minor", "")) if c.isdigit())
    name = str(found.get("gitVersion", "?"))
    if found.get("major") == "1" and digits and int(digits) < MINOR_MIN:
        text = f"{api.server} runs Kubernetes {name}."
        return Finding(name="reachable", is_ok=False, text=text, advice=f"Version 1.{MINOR_MIN} or newer is needed.")
    return Finding(name="reachable", is_ok=True, text=f"{api.server} runs Kubernetes {name}.")


def missing_accesses(api: Api, rules: Sequence[Rule], namespace: str | None) -> Iterator[Access]:
    """Yield the rights that the pool does not have. `namespace` None: in the whole cluster."""
    for access in accesses(rules):
        answer = api.create("selfsubjectaccessreviews", None, access_review(access, namespace))
        if not answer.get("status", {}).get("allowed"):
            yield access


def _rights(settings: KubernetesSection, missing: Sequence[Access]) -> Finding:
    if not missing:
        text = f"All rights in namespace {settings.namespace} are there."
        return Finding(name="rights", is_ok=True, text=text)
    named = ", ".join(f"{access.verb} {access.resource}" for access in missing[:6])
    more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
    command = f"jupyter dlaas k8s manifests --namespace {settings.namespace} --user YOU | kubectl apply -f -"
    advice = f"Ask an administrator to run: {command}"
    text = f"Rights are missing in namespace {settings.namespace}: {named}{more}."
    return Finding(name="rights", is_ok=False, text=text, advice=advice)


def _engine(api: Api, settings: KubernetesSection, pool: str | None) -> Finding:
    """Return whether the namespace is free for a pool, or which engine serves it."""
    try:
        found = api.get("leases", settings.namespace, LEASE)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        found = {}
    if not is_renewed(found, datetime.now(UTC)):
        return Finding(name="engine", is_ok=True, text=f"No engine serves namespace {settings.namespace} now.")
    holder, text = holder_of(found), f"An engine serves namespace {settings.namespace}: {holder_text(found)}."
    if pool is None or (holder is not None and holder.pool == pool):
        return Finding(name="engine", is_ok=None if pool is None else True, text=text)
    advice = (
        f"One engine at a time uses a namespace. Choose another one with --namespace, or stop that engine there: "
        f"{stop_command(holder)}"
    )
    return Finding(name="engine", is_ok=False, text=text, advice=advice)


def _view(settings: KubernetesSection, sees_cluster: bool) -> Finding:
    if sees_cluster:
        return Finding(name="view", is_ok=True, text="Nodes are readable: learners are placed on nodes by the pool.")
    if settings.view is CapacityView.CLUSTER:
        options = f"--namespace {settings.namespace} --user YOU --cluster-view"
        command = f"jupyter dlaas k8s manifests {options} | kubectl apply -f -"
        advice = f'Set view = "auto", or ask an administrator to run: {command}'
        return Finding(name="view", is_ok=False, text="Nodes of the cluster cannot be read.", advice=advice)
    text = "Nodes are not readable: the namespace's quota is the capacity, and the cluster places learners."
    return Finding(name="view", is_ok=None, text=text)


def _devices(api: Api, settings: KubernetesSection, sees_cluster: bool) -> Iterator[Finding]:
    """Yield findings on the namespace's quota and on what the pool may use."""
    quotas = api.list("resourcequotas", settings.namespace)["items"]
    for quota in quotas:
        status = quota.get("status", {})
        used = [
            f"{key} {status.get('used', {}).get(key, '0')} of {value}" for key, value in status.get("hard", {}).items()
        ]
        yield Finding(name="quota", is_ok=None, text=f"Quota {quota['metadata']['name']}: {', '.join(used)}.")
    if sees_cluster:
        nodes = api.list("nodes", None)["items"]
        found = cluster_nodes(nodes, api.list("pods", None)["items"], settings)
        kind = "GPU" if has_gpus(nodes, settings) else "CPU slot"
    else:
        node = namespace_node(quotas, api.list("pods", settings.namespace)["items"], settings)
        found, kind = (node,), "GPU" if any(device.kind == "GPU" for device in node.devices) else "CPU slot"
    usable = [d for node in found if node.cordoned is None for d in node.devices if d.out_of_service is None]
    total = sum(len(node.devices) for node in found)
    if usable:
        where = "1 node" if len(found) == 1 else f"{len(found)} nodes"
        text = f"{len(usable)} of {total} {kind}s can be used now, on {where}."
        yield Finding(name="devices", is_ok=True, text=text)
        return
    reasons = [node.cordoned for node in found if node.cordoned] or [
        device.out_of_service for node in found for device in node.devices if device.out_of_service
    ]
    advice = "Add nodes, or correct `gpu_resource`, `node_selector` and `tolerations` of the pool."
    if not total:
        advice = no_devices_text(quotas, settings, sees_cluster=sees_cluster)
    text = f"No {kind} can be used now{': ' + str(reasons[0]) if reasons else ''}."
    yield Finding(name="devices", is_ok=False, text=text, advice=advice)


# ---- the image -------------------------------------------------------------------------------------------------------


def _image(api: Api, settings: KubernetesSection, probe_s: float) -> Iterator[Finding]:
    """Run a short pod with the image; yield what its Python says about itself, and whether it reaches this machine."""
    try:
        address = settings.engine_address or own_address(urlsplit(api.server).hostname or "")
        with _listener("" if settings.engine_address else address) as listener:
            host = f"[{address}]" if ":" in address else address
            pod = _ended_probe(api, settings, f"{host}:{listener.getsockname()[1]}", probe_s)
    except (ApiUnreachable, OSError) as error:
        yield Finding(name="reach", is_ok=False, text=f"No address of this machine can be found for pods: {error}.")
        return
    if isinstance(pod, Finding):
        yield pod
        return
    found = _answer(settings, pod)
    if isinstance(found, Finding):
        yield found
        return
    yield _python(settings, found)
    yield _reach(address, found.get("cut"))


def _listener(host: str) -> socket.socket:
    """Return a socket that pods can connect to: the kernel completes connections without an accept."""
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def _ended_probe(api: Api, settings: KubernetesSection, address: str, probe_s: float) -> Json | Finding:
    """Return the probe's pod after its end, or as it is when the time is up; a finding if it was not created."""
    body = _probe_pod(settings, address, probe_s)
    try:
        created = api.create("pods", settings.namespace, body)
    except ApiError as error:
        wait = wait_of_refusal(body, error.reason, str(error))
        return Finding(name="image", is_ok=False, text=wait.what, advice=wait.advice)
    name, uid = created["metadata"]["name"], created["metadata"]["uid"]
    try:
        pod = _until(api, settings.namespace, name, lambda pod: end_of_pod(pod) is not None or _is_stuck(pod), probe_s)
        return pod or created
    finally:
        api.delete("pods", settings.namespace, name, uid=uid)


def _answer(settings: KubernetesSection, pod: Json) -> Json | Finding:
    """Return what the probe wrote, or a finding about why it wrote nothing."""
    end = end_of_pod(pod)
    if end is None:
        wait = wait_of_pod(pod)
        text = wait.what if wait is not None else f"The image {settings.image} did not answer in time."
        return Finding(name="image", is_ok=False, text=text, advice=wait.advice if wait is not None else "")
    if end.cause is not None:
        return Finding(name="image", is_ok=False, text=end.what, advice=end.advice)
    message = pod["status"]["containerStatuses"][0]["state"]["terminated"].get("message", "")
    try:
        found: Json = json.loads(message)
    except ValueError:
        return Finding(name="image", is_ok=False, text=f"The image {settings.image} answered {message!r}.")
    return found


def _python(settings: KubernetesSection, found: Json) -> Finding:
    version = ".".join(map(str, found["python"]))
    frameworks = ", ".join(found["frameworks"]) or "no framework"
    text = f"{settings.image} has Python {version} and {frameworks}."
    if tuple(found["python"][:2]) < (3, 11):
        return Finding(name="image", is_ok=False, text=text, advice="Learners need Python 3.11 or newer.")
    if tuple(found["python"][:2]) != sys.version_info[:2]:
        own = ".".join(map(str, sys.version_info[:2]))
        advice = f"Notebooks here have Python {own}: functions and objects of the notebook need the same minor version."
        return Finding(name="image", is_ok=None, text=text, advice=advice)
    return Finding(name="image", is_ok=True, text=text)


def _reach(address: str, problem: str | None) -> Finding:
    if problem is None:
        return Finding(name="reach", is_ok=True, text=f"Pods reach this machine at {address}.")
    advice = (
        "Learners connect to this machine. Allow it in firewalls and network policies, set engine_address to an "
        "address that pods reach, or run the engine inside the cluster."
    )
    text = f"Pods do not reach this machine at {address}: {problem}."
    return Finding(name="reach", is_ok=False, text=text, advice=advice)


def _probe_pod(settings: KubernetesSection, address: str, probe_s: float) -> Json:
    amounts = {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "64Mi"}
    container = {
        "name": "probe",
        "image": settings.image,
        "command": ["python3", "-c", _PROGRAM, address],
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: Json = {
        "containers": [container],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "activeDeadlineSeconds": math.ceil(probe_s) + LEFT_S,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in settings.image_pull_secrets]
    metadata = {"generateName": f"{PROBE}-", "namespace": settings.namespace, "labels": dict(MANAGED_BY)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _is_stuck(pod: Json) -> bool:
    wait = wait_of_pod(pod)
    return wait is not None and wait.code.startswith(("image_", "container_", "no_nodes"))


def _until(api: Api, namespace: str, name: str, is_met: Callable[[Json], bool], timeout_s: float) -> Json | None:
    """Return the pod as soon as it meets a condition, or as it is when the time is up."""
    is_done = threading.Event()
    last: list[Json] = []

    def take(change: Change) -> None:
        if change.after is not None:
            last[:] = [change.after]
        if change.after is None or is_met(change.after):
            is_done.set()

    watch = Watch(api, "pods", namespace, take, fields=f"metadata.name={name}")
    watch.start()
    is_done.wait(timeout_s)
    watch.close()
    return last[0] if last else None
