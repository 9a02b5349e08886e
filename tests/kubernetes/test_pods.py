"""Pods on a real control plane: the behaviour that the Kubernetes pool relies on, the same on any cluster."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kubernetes.api import ApiError, Json
from tests.kubernetes.conftest import Namespace, conditions, terminated, waiting_reason

pytestmark = pytest.mark.cluster


def test_a_pod_runs_and_kubectl_reads_its_log(namespace: Namespace) -> None:
    namespace.run_pod("a", "echo out; echo err >&2; printf 'no newline'")
    pod = namespace.wait_phase("a", "Succeeded")

    assert terminated(pod)["reason"] == "Completed"
    assert sorted(namespace.kubectl("logs", "a").splitlines()) == ["err", "no newline", "out"]
    assert namespace.kubectl("logs", "a", "--tail=1").rstrip("\n") == "no newline"


def test_a_long_log_arrives_complete(namespace: Namespace) -> None:
    namespace.run_pod("a", "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i + 1)); done")
    namespace.wait_phase("a", "Succeeded")

    assert namespace.kubectl("logs", "a") == "".join(f"line {number}\n" for number in range(20000))


@pytest.mark.parametrize(("script", "phase", "code", "reason"), [
    ("exit 3", "Failed", 3, "Error"),
    ("sh -c 'kill -9 $$$$'", "Failed", 137, "Error"),
    ("true", "Succeeded", 0, "Completed"),
])  # fmt: skip
def test_exit_codes_are_reported(namespace: Namespace, script: str, phase: str, code: int, reason: str) -> None:
    namespace.run_pod("a", f"{script}; exit $?")
    pod = namespace.wait_phase("a", "Failed", "Succeeded")

    assert (pod["status"]["phase"], terminated(pod)["exitCode"], terminated(pod)["reason"]) == (phase, code, reason)


def test_a_command_that_does_not_exist_is_a_start_error(namespace: Namespace) -> None:
    namespace.run_pod("a", "", container={"command": ["no-such-program"]})
    pod = namespace.wait_phase("a", "Failed")

    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (128, "StartError")
    assert "no-such-program" in terminated(pod)["message"]


def test_the_termination_message_is_reported(namespace: Namespace) -> None:
    namespace.run_pod("a", "printf 'loss is NaN' > /dev/termination-log; exit 1")

    assert terminated(namespace.wait_phase("a", "Failed"))["message"] == "loss is NaN"


def test_a_deleted_pod_handles_sigterm_within_its_grace_period(namespace: Namespace) -> None:
    script = "trap 'echo saved; exit 0' TERM; echo started; while true; do sleep 0.1; done"
    namespace.run_pod("a", script, terminationGracePeriodSeconds=60)
    namespace.wait_phase("a", "Running")
    with follow_log(namespace, "a") as log:
        assert log.stdout is not None
        assert log.stdout.readline() == "started\n"
        namespace.delete("pods", "a")

        assert log.stdout.read() == "saved\n"
    assert log.returncode == 0
    namespace.wait_gone("pods", "a", timeout_s=30.0)


def test_a_deleted_pod_that_ignores_sigterm_is_killed(namespace: Namespace) -> None:
    namespace.run_pod("a", "trap '' TERM; echo started; while true; do sleep 0.1; done")
    namespace.wait_phase("a", "Running")
    namespace.patch("pods", "a", {"metadata": {"finalizers": ["tests/keep"]}})
    with follow_log(namespace, "a") as log:
        assert log.stdout is not None
        assert log.stdout.readline() == "started\n"
        namespace.delete("pods", "a", grace_s=1)
    pod = namespace.wait_phase("a", "Failed")

    assert terminated(pod)["exitCode"] == 137
    namespace.patch("pods", "a", {"metadata": {"finalizers": None}})
    namespace.wait_gone("pods", "a")


def test_an_image_that_cannot_be_pulled_is_named(namespace: Namespace) -> None:
    image = "registry.invalid/team/model:1"
    namespace.run_pod("a", "true", image=image)

    refused = namespace.wait_reason("a", "ErrImagePull")
    assert image in refused["waiting"]["message"]
    backing_off = namespace.wait_reason("a", "ImagePullBackOff")
    assert image in backing_off["waiting"]["message"]
    assert namespace.get("pods", "a")["status"]["phase"] == "Pending"
    namespace.delete("pods", "a")
    namespace.wait_gone("pods", "a", timeout_s=30.0)


def test_a_gated_pod_is_scheduled_when_its_gate_goes(namespace: Namespace) -> None:
    namespace.run_pod("a", "true", schedulingGates=[{"name": "jupyter-dlaas/gang"}])
    gated = namespace.wait("pods", "a", lambda pod: "PodScheduled" in conditions(pod))
    assert conditions(gated)["PodScheduled"]["reason"] == "SchedulingGated"
    assert "nodeName" not in gated["spec"]

    namespace.patch("pods", "a", {"spec": {"schedulingGates": None}})
    assert namespace.wait_phase("a", "Succeeded")["spec"]["nodeName"]


def test_a_pod_that_fits_nowhere_says_so(namespace: Namespace) -> None:
    resources = {"limits": {"nvidia.com/gpu": "1000"}, "requests": {"nvidia.com/gpu": "1000"}}
    namespace.run_pod("a", "true", container={"resources": resources})
    pod = namespace.wait("pods", "a", lambda pod: "PodScheduled" in conditions(pod))

    assert conditions(pod)["PodScheduled"]["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in conditions(pod)["PodScheduled"]["message"]


def test_a_pod_gets_its_volumes_and_variables(namespace: Namespace) -> None:
    namespace.create("configmaps", {"metadata": {"name": "code"}, "data": {"a.py": "print(1)"}})
    secret = {"metadata": {"name": "token"}, "data": {"token": base64.b64encode(b"hush").decode()}}
    namespace.create("secrets", secret)
    mounts = [
        {"name": "code", "mountPath": "/dlaas/code"},
        {"name": "scratch", "mountPath": "/dlaas/scratch"},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    volumes = [
        {"name": "code", "configMap": {"name": "code"}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
    environment = [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "token"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "GREETING", "value": "I am $(POD)"},
    ]
    script = (
        "python3 /dlaas/code/a.py; echo $TOKEN; echo $GREETING; hostname; id -u;"
        "touch /dlaas/scratch/x /dev/shm/x && ls /dlaas/scratch; touch /dlaas/code/x 2>/dev/null || echo read-only;"
        "echo $ADDRESS"
    )
    namespace.run_pod("a", script, volumes=volumes, container={"volumeMounts": mounts, "env": environment})
    pod = namespace.wait_phase("a", "Succeeded", "Failed")

    said = namespace.kubectl("logs", "a").splitlines()
    assert said == ["1", "hush", "I am a", "a", "1000", "x", "read-only", pod["status"]["podIP"]]


def test_a_pod_waits_for_a_missing_config_map(namespace: Namespace) -> None:
    mounts = [{"name": "code", "mountPath": "/dlaas/code"}]
    volumes = [{"name": "code", "configMap": {"name": "code"}}]
    namespace.run_pod("a", "cat /dlaas/code/x", volumes=volumes, container={"volumeMounts": mounts})
    namespace.wait_reason("a", "ContainerCreating")
    assert 'configmap "code" not found' in namespace.wait_event("a", "FailedMount")
    namespace.create("configmaps", {"metadata": {"name": "code"}, "data": {"x": "found"}})
    namespace.wait_phase("a", "Succeeded")

    assert namespace.kubectl("logs", "a") == "found"


def test_a_missing_secret_of_the_environment_is_named(namespace: Namespace) -> None:
    variable = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "token"}}}
    namespace.run_pod("a", "true", container={"env": [variable]})
    state = namespace.wait_reason("a", "CreateContainerConfigError")

    assert state["waiting"]["message"] == 'secret "absent" not found'


def test_a_pods_token_is_accepted_by_the_api_server(namespace: Namespace) -> None:
    ask = """
import json, os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
address = "https://" + os.environ["KUBERNETES_SERVICE_HOST"] + ":" + os.environ["KUBERNETES_SERVICE_PORT"]
headers = {"Authorization": "Bearer " + open(folder + "/token").read(), "Content-Type": "application/json"}
review = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode()
url = address + "/apis/authentication.k8s.io/v1/selfsubjectreviews"
context = ssl.create_default_context(cafile=folder + "/ca.crt")
answer = json.load(urllib.request.urlopen(urllib.request.Request(url, review, headers), context=context))
print(answer["status"]["userInfo"]["username"])
"""
    namespace.run_pod("a", "", automountServiceAccountToken=True, container={"command": ["python3", "-c", ask]})
    namespace.wait_phase("a", "Succeeded", "Failed")

    assert namespace.kubectl("logs", "a") == f"system:serviceaccount:{namespace.name}:default\n"


def test_pods_reach_each_other_by_address(namespace: Namespace) -> None:
    serve = (
        "from http.server import HTTPServer, SimpleHTTPRequestHandler; import os;"
        "HTTPServer((os.environ['IP'], 8000), SimpleHTTPRequestHandler).serve_forever()"
    )
    variable = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    command = {"command": ["python3", "-c", serve], "env": [variable], "workingDir": "/tmp"}
    namespace.run_pod("server", "", container=command)
    address = namespace.wait_phase("server", "Running")["status"]["podIP"]
    fetch = f"import urllib.request; print(urllib.request.urlopen('http://{address}:8000').status)"
    script = f'until python3 -c "{fetch}" 2>/dev/null; do sleep 0.1; done'
    namespace.run_pod("client", script)
    namespace.wait_phase("client", "Succeeded")

    assert namespace.kubectl("logs", "client") == "200\n"


def test_a_quota_refuses_a_pod_in_words(namespace: Namespace) -> None:
    hard = {"spec": {"hard": {"requests.nvidia.com/gpu": "1"}}, "metadata": {"name": "gpus"}}
    namespace.create("resourcequotas", hard)
    namespace.wait("resourcequotas", "gpus", lambda quota: "hard" in quota.get("status", {}))
    resources = {"limits": {"nvidia.com/gpu": "2"}}

    with pytest.raises(ApiError, match="exceeded quota: gpus") as refusal:
        namespace.run_pod("a", "true", container={"resources": resources})
    assert refusal.value.status == 403


def test_pods_go_with_the_object_that_owns_them(namespace: Namespace) -> None:
    anchor = namespace.create("configmaps", {"metadata": {"name": "job-1"}})
    manifest = namespace.manifest("a", "while true; do sleep 0.1; done")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "job-1", "uid": anchor["metadata"]["uid"]}
    manifest["metadata"]["ownerReferences"] = [owner]
    namespace.create("pods", manifest)
    namespace.wait_phase("a", "Running")
    namespace.delete("configmaps", "job-1")

    namespace.wait_gone("pods", "a")


def test_a_failed_container_restarts_where_its_policy_says_so(namespace: Namespace) -> None:
    namespace.run_pod("a", "exit 4", restartPolicy="OnFailure")
    pod = namespace.wait("pods", "a", lambda pod: waiting_reason(pod) == "CrashLoopBackOff")
    status = pod["status"]["containerStatuses"][0]

    assert status["lastState"]["terminated"]["exitCode"] == 4
    assert pod["status"]["phase"] == "Running"


def test_a_deleted_pod_ends_all_its_containers(namespace: Namespace) -> None:
    """One container runs and saves its state, the image of the other cannot be pulled."""
    manifest = namespace.manifest("a", "trap 'echo saved; exit 0' TERM; echo up; while true; do sleep 0.1; done")
    other = {**manifest["spec"]["containers"][0], "name": "other", "image": "registry.invalid/team/model:1"}
    manifest["spec"]["containers"].append(other)
    manifest["metadata"]["finalizers"] = ["tests/keep"]
    namespace.create("pods", manifest)
    namespace.wait("pods", "a", lambda pod: "running" in main_state(pod))
    with follow_log(namespace, "a", "--container=main") as log:
        assert log.stdout is not None
        assert log.stdout.readline() == "up\n"
        namespace.delete("pods", "a", grace_s=60)
        assert log.stdout.read() == "saved\n"
    pod = namespace.wait_phase("a", "Failed")

    assert main_state(pod)["terminated"]["exitCode"] == 0
    namespace.patch("pods", "a", {"metadata": {"finalizers": None}})


def main_state(pod: Json) -> Json:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    states: list[Json] = [status["state"] for status in statuses if status["name"] == "main"]
    return states[0] if states else {}


def test_the_python_client_forwards_a_port(namespace: Namespace) -> None:
    serve = (
        "import os, socket; s = socket.create_server((os.environ['IP'], 7000)); print('up', flush=True);"
        "c = s.accept()[0]; c.sendall(c.recv(100).upper()); c.close()"
    )
    variable = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    namespace.run_pod("a", "", container={"command": ["python3", "-c", serve], "env": [variable]})
    namespace.wait_phase("a", "Running")
    with follow_log(namespace, "a") as log:
        assert log.stdout is not None
        assert log.stdout.readline() == "up\n"
        log.terminate()
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("forward.py")), namespace.name, "a", "7000", "hello"],
        env={"KUBECONFIG": str(namespace.cluster.kubeconfig), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.stdout == "HELLO", done.stderr


def follow_log(namespace: Namespace, pod: str, *options: str) -> subprocess.Popen[str]:
    kubectl = str(Path(sys.prefix) / "bin" / "kubectl")
    command = [kubectl, "--namespace", namespace.name, "logs", "--follow", pod, *options]
    environment = {"KUBECONFIG": str(namespace.cluster.kubeconfig), "PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
