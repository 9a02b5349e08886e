"""Commands of `jupyter dlaas k8s`: `python -m dlaas_server.pools.kubernetes {manifests,check} …`.

Exit codes: 0 success, 1 a check failed, 2 usage error, 5 the package `kubernetes` or the credentials are missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dlaas_server.pools.kubernetes.api import connect
from dlaas_server.pools.kubernetes.manifests.lab_manifests import Lab
from dlaas_server.pools.kubernetes.manifests.pool_manifests import deployment_manifests, kustomization, to_yaml
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from dlaas_server.pools.kubernetes.preflight import PROBE_S, preflight, print_findings
from jupyter_dlaas.wire.codec import DlaasError, Invalid, decode

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    given = {name: value for name, value in vars(options).items() if value is not None and name in _SETTINGS}
    if options.command == "manifests" and options.lab is None:
        for option in ("image", "storage", "storage_class"):
            if getattr(options, option) is not None:
                parser.error(f"--{option.replace('_', '-')} is for the JupyterLab in the cluster: add --lab IMAGE")
    try:
        settings = decode(KubernetesSection, given)
    except Invalid as error:
        print(f"dlaas: {error}", file=sys.stderr)
        return 2
    try:
        return _manifests(options, settings) if options.command == "manifests" else _check(options, settings)
    except DlaasError as error:
        print(f"dlaas: {error}", file=sys.stderr)
        return 5


_SETTINGS: Final = (
    "namespace",
    "context",
    "kubeconfig",
    "image",
    "gpu_resource",
    "engine_address",
    "storage",
    "storage_class",
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jupyter dlaas k8s", description="Prepare a Kubernetes cluster for jobs.")
    commands = parser.add_subparsers(dest="command", required=True)
    manifests = commands.add_parser("manifests", help="print what an administrator applies: namespace, Role, binding")
    manifests.add_argument("--namespace", help="namespace of the pool (default: dlaas)")
    manifests.add_argument("--user", action="append", default=[], help="bind the Role to this user of the cluster")
    manifests.add_argument("--group", action="append", default=[], help="bind the Role to this group")
    manifests.add_argument(
        "--cluster-view", action="store_true", help="also allow reading nodes and pods of the whole cluster"
    )
    manifests.add_argument(
        "--lab",
        metavar="IMAGE",
        type=_image,
        help="add a JupyterLab with the pool's engine in the cluster; its image has jupyterlab and "
        "jupyter_dlaas[kubernetes]",
    )
    manifests.add_argument("--image", help="image of the learners of that JupyterLab (default: the same)")
    manifests.add_argument("--storage", metavar="SIZE", help="size of its volume (default: 20Gi)")
    manifests.add_argument("--storage-class", metavar="NAME", help="storage class of its volume")
    manifests.add_argument("--kustomize", metavar="DIR", type=Path, help="write a kustomize base into this folder")
    check = commands.add_parser("check", help="check that jobs can run on the cluster")
    check.add_argument("--namespace", help="namespace of the pool (default: dlaas)")
    check.add_argument("--context", help="context of the kubeconfig (default: its current one)")
    check.add_argument("--kubeconfig", help="kubeconfig file (default: KUBECONFIG, or ~/.kube/config)")
    check.add_argument("--image", help="image of learners, run once by the check")
    check.add_argument("--engine-address", help="address at which pods reach this machine (default: found out)")
    check.add_argument("--gpu-resource", dest="gpu_resource", help="resource name of GPUs (default: nvidia.com/gpu)")
    check.add_argument("--no-image", action="store_true", help="do not run the image")
    check.add_argument("--json", action="store_true", help="print one finding per line as JSON")
    check.add_argument("--timeout", type=float, default=PROBE_S, metavar="S", help="seconds for the image to be pulled")
    return parser


def _image(text: str) -> str:
    try:
        return decode(KubernetesSection, {"image": text}).image
    except Invalid as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _manifests(options: argparse.Namespace, settings: KubernetesSection) -> int:
    lab = None
    if options.lab is not None:
        lab = Lab(image=options.lab, learner_image=options.image, storage_class=settings.storage_class)
        lab = lab if settings.storage is None else replace(lab, storage=settings.storage)
    manifests = deployment_manifests(
        settings.namespace, sees_cluster=options.cluster_view, users=options.user, groups=options.group, lab=lab
    )
    if options.kustomize is None:
        print(to_yaml(manifests), end="")
        return 0
    try:
        options.kustomize.mkdir(parents=True, exist_ok=True)
        for name, text in kustomization(manifests).items():
            (options.kustomize / name).write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"dlaas: cannot write {options.kustomize}: {error.strerror or error}", file=sys.stderr)
        return 2
    print(f"Wrote a kustomize base to {options.kustomize}. To apply it: kubectl apply -k {options.kustomize}")
    return 0


def _check(options: argparse.Namespace, settings: KubernetesSection) -> int:
    api = connect(settings)
    try:
        findings = preflight(api, settings, probes_image=not options.no_image, probe_s=options.timeout)
        return int(not print_findings(findings, as_json=options.json))
    finally:
        api.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
