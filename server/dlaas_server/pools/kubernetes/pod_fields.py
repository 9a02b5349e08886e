"""Fields of a pod's status that several readers need. Pure."""

from __future__ import annotations

from typing import Final

from dlaas_server.pools.kubernetes.manifests.names import Json

__all__ = ["condition", "gates", "pinned_node", "sentence"]

MESSAGE_CHARACTERS: Final = 400


def condition(item: Json, kind: str) -> Json:
    """Return a condition of a pod or node; {} if it has none of this kind."""
    conditions: list[Json] = item.get("status", {}).get("conditions") or []
    return next((found for found in conditions if found.get("type") == kind), {})


def gates(pod: Json) -> list[str]:
    """Return the names of the pod's scheduling gates."""
    return [str(gate.get("name")) for gate in pod.get("spec", {}).get("schedulingGates") or []]


def pinned_node(pod: Json) -> str | None:
    """Return the node to which the pool pinned a pod; None if the cluster chooses."""
    affinity = (pod.get("spec", {}).get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or []:
        for field in term.get("matchFields") or []:
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return None


def sentence(message: str) -> str:
    """Return a message of Kubernetes on one line that ends with a full stop."""
    text = " ".join(message.split())
    text = text if len(text) <= MESSAGE_CHARACTERS else text[: MESSAGE_CHARACTERS - 1] + "…"
    return text if text.endswith((".", "…", "!")) else f"{text or 'no reason was given'}."
