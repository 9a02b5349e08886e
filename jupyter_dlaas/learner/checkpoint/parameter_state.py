"""What belongs to the state of a training and is in no `state_dict`: which parameters are trained, and loose ones.

A program unfreezes a layer in epoch 2, say. A job that goes on in epoch 3 and a learner that joins there never run that
line. An optimiser may also train parameters that are in no model: its `state_dict` holds all but their values.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["loose", "put_back", "snapshot"]

Objects = Sequence[tuple[str, Any]]


def snapshot(objects: Objects) -> dict[str, dict[str, Any]]:
    """For a checkpoint, and for a learner that joins. `objects`: models and optimisers by their names in the state."""
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
    """Go on from a snapshot."""
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
    """Parameters of the optimisers that belong to none of the models, by the optimiser's name."""
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
