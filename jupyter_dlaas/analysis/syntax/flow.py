"""Records of the names that a statement, or a function's body, reads and binds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flow:
    """Effects of a statement on module-level names, in their order."""

    reads: frozenset[str] = frozenset()  # read before it binds them itself: an earlier statement must bind them
    soft: frozenset[str] = (
        frozenset()
    )  # possibly read before bound: needed if a statement binds them, no error otherwise
    late: frozenset[str] = frozenset()  # read by function bodies, when called
    binds: frozenset[str] = frozenset()  # possibly or certainly
    kills: frozenset[str] = frozenset()  # certainly bound: earlier bindings no longer apply
    likely: frozenset[str] = frozenset()  # bound unless a loop has no iteration; contains `kills`
    deletes: frozenset[str] = frozenset()
    globals_bound: frozenset[str] = frozenset()  # bound by function bodies with `global`, when called
    conditional: frozenset[str] = frozenset()  # reads that only some branch makes
    rare: frozenset[str] = frozenset()  # conditional reads of an `except` clause or of an `if` outside loops
    bound: frozenset[str] = frozenset()  # soft reads below a likely binding of the statement itself
    early: frozenset[str] = frozenset()  # soft reads that may precede all bindings of the statement


@dataclass(frozen=True, slots=True)
class Free:
    """Outer names that a function body needs."""

    reads: frozenset[str]  # an enclosing function may bind them
    globals_read: frozenset[str]  # declared `global`: enclosing functions do not matter
    globals_bound: frozenset[str]
