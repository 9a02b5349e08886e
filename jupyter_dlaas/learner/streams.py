"""The random streams of a learner: kept in checkpoints, and put back to the number."""

from __future__ import annotations

import base64
import functools
import json
import random
import sys
from array import array
from typing import Any

from jupyter_dlaas.learner import imports
from jupyter_dlaas.learner.context import current

__all__ = ["put_back", "random_as_before", "snapshot", "written"]


def snapshot() -> dict[str, Any]:
    """Where Python's, NumPy's and torch's random streams are, as far as they are in use."""
    found: dict[str, Any] = {"python": random.getstate()}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        found["numpy"] = numpy_random.get_state()
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def put_back(found: dict[str, Any]) -> None:
    """Go on where a snapshot was taken."""
    random.setstate(found["python"])
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None and "numpy" in found:
        numpy_random.set_state(found["numpy"])
    if torch is not None and "torch" in found:
        torch.set_rng_state(found["torch"])
        if "cuda" in found and torch.cuda.is_available() and torch.cuda.device_count() == len(found["cuda"]):
            torch.cuda.set_rng_state_all(found["cuda"])


# --------------------------------------------------------------------------------- those of a notebook's cells


def written() -> str:
    """Where the streams are, as text for `random_as_before`: equal texts, equal numbers to come."""
    version, numbers, gauss = random.getstate()
    found: dict[str, Any] = {"random": [version, _text(array("I", numbers)), gauss]}
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None:
        kind, keys, *rest = numpy_random.get_state()
        found["numpy.random"] = [kind, _text(array("I", keys.tolist())), *rest]
    if torch is not None:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        found["torch"] = [_text(state.numpy().tobytes()) for state in (torch.get_rng_state(), *cuda)]
    return json.dumps(found)


def random_as_before(cell: int) -> None:
    """Let the random streams go on where they were in the notebook before this cell ran. Outside of a job: nothing."""
    context = current()
    path = None if context is None else context.job_dir / "inputs" / "chance.json"
    if path is None or not path.exists():
        return
    found = json.loads(json.loads(path.read_text())[str(cell)])
    version, numbers, gauss = found["random"]
    random.setstate((version, tuple(array("I", _bytes(numbers))), gauss))
    for name, act in (("numpy.random", _put_numpy), ("torch", _put_torch)):
        if name in found:
            imports.after(name, functools.partial(act, found[name]))


def _put_numpy(found: list[Any], module: Any) -> None:
    kind, keys, *rest = found
    numpy = sys.modules["numpy"]
    module.set_state((kind, numpy.array(array("I", _bytes(keys)), dtype="uint32"), *rest))


def _put_torch(found: list[str], module: Any) -> None:
    states = [module.frombuffer(bytearray(_bytes(text)), dtype=module.uint8) for text in found]
    module.set_rng_state(states[0])
    if len(states) > 1 and module.cuda.is_available() and module.cuda.device_count() == len(states) - 1:
        module.cuda.set_rng_state_all(states[1:])


def _text(data: Any) -> str:
    return base64.b64encode(bytes(data)).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
