"""Training state that is in no `state_dict`: which parameters are trainable, and parameters outside models.

For example, a program unfreezes a layer in epoch 2. A job that resumes in epoch 3, or a learner that joins then, never
executes that line. An optimiser may also train parameters of no model: its `state_dict` does not contain their values.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_dlaas.objects.object_values import is_sharded

__all__ = ["loose", "put_back", "sharded", "snapshot"]

Objects = Sequence[tuple[str, Any]]


def snapshot(objects: Objects) -> dict[str, dict[str, Any]]:
    """Return the state for checkpoints and joining learners. `objects`: models and optimisers by name."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {"trained": {}, "loose": {}}
    models = [(name, one) for name, one in objects if isinstance(one, torch.nn.Module)]
    return {
        "trained": {
            name: [key for key, parameter in one.named_parameters() if parameter.requires_grad] for name, one in models
        },
        "loose": {name: [one.detach() for one in found] for name, found in loose(objects).items()},
    }


def put_back(objects: Objects, kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Restore a snapshot."""
    torch: Any = sys.modules.get("torch")
    for name, one in objects:
        if name in kept.get("trained", {}):
            trained = set(kept["trained"][name])
            for key, parameter in one.named_parameters():
                if parameter.requires_grad != (key in trained):
                    parameter.requires_grad_(key in trained)
    for name, found in loose(objects).items() if kept.get("loose") else ():
        for parameter, value in zip(found, kept["loose"].get(name, ()), strict=False):
            with torch.no_grad():
                parameter.copy_(value)


def loose(objects: Objects) -> dict[str, list[Any]]:
    """Return the optimisers' parameters that belong to no model, by the optimiser's name."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    modules = (one for _, one in objects if isinstance(one, torch.nn.Module))
    known = {id(parameter) for one in modules for parameter in one.parameters()}
    found: dict[str, list[Any]] = {}
    for name, one in objects:
        for group in one.param_groups if isinstance(one, torch.optim.Optimizer) else ():
            for parameter in group["params"]:
                if id(parameter) not in known:
                    known.add(id(parameter))
                    found.setdefault(name, []).append(parameter)
    return found


def sharded(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors that are this learner's parts of parameters."""
    return {path: one for path, one in tensors.items() if is_sharded(one)}
