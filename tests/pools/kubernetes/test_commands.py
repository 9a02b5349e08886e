"""Commands of `jupyter dlaas k8s`."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from dlaas_server.pools.kubernetes.__main__ import main
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from jupyter_dlaas.cli import main as command_line
from jupyter_dlaas.wire.codec import decode


def test_manifests_are_printed_for_kubectl(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", "--namespace", "ml", "--user", "ana", "--cluster-view"]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))

    kinds = [item["kind"] for item in found]
    assert kinds == ["Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"]
    assert found[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {subject["name"] for subject in found[3]["subjects"]} == {"jupyter-dlaas-engine", "ana"}


def test_a_kustomize_base_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", "--kustomize", str(tmp_path / "base")]) == 0

    base = yaml.safe_load((tmp_path / "base" / "kustomization.yaml").read_text(encoding="utf-8"))
    assert sorted(base["resources"]) == ["namespace.yaml", "role.yaml", "rolebinding.yaml", "serviceaccount.yaml"]
    assert f"kubectl apply -k {tmp_path / 'base'}" in capsys.readouterr().out


def test_jupyterlab_in_the_cluster_is_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--namespace",
        "ml",
        "--lab",
        "lab:1",
        "--image",
        "torch:2",
        "--storage",
        "50Gi",
        "--storage-class",
        "fast",
    ]
    assert main(["manifests", *words]) == 0
    found = {item["kind"]: item for item in yaml.safe_load_all(capsys.readouterr().out)}

    config = tomllib.loads(found["ConfigMap"]["data"]["config.toml"])
    settings = KubernetesSection(namespace="ml", image="torch:2", engine_address="jupyter-dlaas-engine.ml.svc")
    assert decode(KubernetesSection, config["kubernetes"]) == settings
    assert found["PersistentVolumeClaim"]["spec"]["storageClassName"] == "fast"
    assert found["PersistentVolumeClaim"]["spec"]["resources"] == {"requests": {"storage": "50Gi"}}
    assert found["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"] == "lab:1"


@pytest.mark.parametrize(("arguments", "words"), [
    (["--image", "torch:2"], "--image is for the JupyterLab in the cluster: add --lab IMAGE"),
    (["--storage-class", "fast"], "--storage-class is for the JupyterLab in the cluster: add --lab IMAGE"),
    (["--lab", "my lab"], "is not a valid image"),
])  # fmt: skip
def test_options_of_jupyterlab_are_checked(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["manifests", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["manifests", "--lab", "lab:1", "--storage", "50 apples"], 2, "is not a valid quantity"),
    (["manifests", "--namespace", "My_NS"], 2, "is not a valid namespace"),
    (["check", "--kubeconfig", "/absent/config"], 5, "in /absent/config: the file does not exist"),
])  # fmt: skip
def test_bad_input_is_named(arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    assert words in capsys.readouterr().err


def test_the_verb_passes_its_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    def call(command: list[str]) -> int:
        called.append(command)
        return 3

    monkeypatch.setattr(subprocess, "call", call)
    server = [sys.executable, "-m", "dlaas_server.pools.kubernetes"]

    assert command_line.main(["k8s", "check", "--namespace", "ml"]) == 3
    command_line.main(["--json", "k8s", "check"])
    command_line.main(["k8s"])
    assert called == [[*server, "check", "--namespace", "ml"], [*server, "check", "--json"], [*server, "--help"]]


def test_findings_are_json_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config), encoding="utf-8")
    assert main(["check", "--json", "--kubeconfig", str(tmp_path / "config")]) == 1

    finding = json.loads(capsys.readouterr().out)
    assert (finding["name"], finding["is_ok"]) == ("reachable", False)
    assert "https://127.0.0.1:1" in finding["text"]
