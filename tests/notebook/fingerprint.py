"""A value as text that is equal in two processes when the values are. For tests only."""

from __future__ import annotations

import hashlib
import types
from typing import Any


def fingerprint(value: Any, depth: int = 6) -> str:
    """Types, numbers, weights and code, down to a depth; never an address."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind in {int, float, complex, str, bytes, bool, type(None)}:
        return repr(value)
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, types.FunctionType):
        return f"function {value.__name__} {_code(value.__code__)} {fingerprint(value.__defaults__, depth - 1)}"
    if isinstance(value, type):
        parts = {k: v for k, v in vars(value).items() if isinstance(v, types.FunctionType)}
        return f"class {value.__name__} {[b.__name__ for b in value.__mro__]} {fingerprint(parts, depth - 1)}"
    if depth == 0:
        return name
    if kind in {list, tuple}:
        return f"{name}[{', '.join(fingerprint(part, depth - 1) for part in value)}]"
    if kind in {set, frozenset}:
        return f"{name}[{', '.join(sorted(fingerprint(part, depth - 1) for part in value))}]"
    if isinstance(value, dict):
        pairs = (f"{fingerprint(k, depth - 1)}: {fingerprint(v, depth - 1)}" for k, v in value.items())
        return f"{name}{{{', '.join(pairs)}}}"
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        grad = value.requires_grad
        return f"tensor {tuple(value.shape)} {grad} {_digest(value.detach().contiguous().numpy().tobytes())}"
    if name == "numpy.ndarray":
        return f"array {value.shape} {value.dtype} {_digest(value.tobytes())}"
    if hasattr(value, "state_dict") and hasattr(value, "param_groups"):
        return f"{name} {fingerprint(value.state_dict(), depth)}"
    if hasattr(value, "state_dict") and hasattr(value, "named_modules"):
        grads = [p.requires_grad for p in value.parameters()]
        return f"{name} {value.training} {grads} {fingerprint(dict(value.state_dict()), depth)}"
    if hasattr(value, "__dict__"):
        return f"{name} {fingerprint(vars(value), depth - 1)}"
    return name


def _code(code: types.CodeType) -> str:
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    # not the byte code: it depends on which imports stand in the same cell
    return _digest(repr((code.co_names, code.co_varnames, code.co_freevars, constants)).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
