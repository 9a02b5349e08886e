"""Names that a statement reads, binds and deletes, and that its functions read later. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from jupyter_dlaas.analysis.syntax.constants import (
    catches_names,
    is_always_true,
    is_never_empty,
    is_true_at_start,
    names_in_text,
    swallows_errors,
)
from jupyter_dlaas.analysis.syntax.flow import Flow, Free
from jupyter_dlaas.analysis.syntax.ipython_magics import names_expanded
from jupyter_dlaas.analysis.syntax.text_lookups import looked_up, looked_up_in

TYPE_PARAMS = "type_params"  # PEP 695, since Python 3.12

LEAVES = frozenset({ast.Name, ast.Constant, ast.alias, ast.Pass, ast.Global, ast.Nonlocal})
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def flow_of(node: ast.stmt, *, lazy_annotations: bool = False) -> Flow:
    """Return the flow of a module-level statement; `lazy_annotations` for `from __future__ import annotations`."""
    walk = _Walk(lazy_annotations)
    walk.statement(node)
    return walk.flow()


def free_names(function: Function) -> Free:
    """Return the names that a function's body reads from outside, and the globals that it binds."""
    scope = _Scope()
    args = function.args
    local = {a.arg for a in [*args.posonlyargs, *args.args, *args.kwonlyargs]}
    local |= {a.arg for a in (args.vararg, args.kwarg) if a is not None}
    local |= {p.name for p in getattr(function, TYPE_PARAMS, [])}
    for part in function.body if isinstance(function.body, list) else [function.body]:
        scope.visit(part)
    return scope.free(local)


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below one, parents first. Takes a third of the time of `ast.walk`: a check mostly walks trees."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        if type(node) not in LEAVES:
            todo += children(node)


def children(node: ast.AST) -> list[ast.AST]:
    """Return the direct child nodes, the last first; without load, store and operators, which contain nothing.

    Reads only the node's fields. Other tools add attributes to nodes, and the parser shares one object per operator
    in all trees: `executing`, which formats IPython's tracebacks, sets `parent` on them, which leads to cycles.
    """
    found: list[ast.AST] = []
    values = node.__dict__
    for name in node._fields:
        value = values.get(name)
        if type(value) is list:
            found += [part for part in value if isinstance(part, ast.AST)]
        elif isinstance(value, ast.AST) and value._fields:
            found.append(value)
    found.reverse()
    return found


def root_name(node: ast.AST) -> str | None:
    """Return the variable at the root of `a.b[0].c(1).d`, here `a`; None if there is none."""
    while True:
        match node:
            case ast.Call(func=ast.Name(id="vars" | "getattr" | "iter" | "next" | "super" | "type"), args=[first, *_]):
                node = first
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
                node = inner
            case ast.Await(value=inner) | ast.Call(func=inner):
                node = inner
            case ast.Name(id=name):
                return name
            case _:
                return None


def bound_names(target: ast.AST) -> frozenset[str]:
    """Return all names that an assignment target, or any part of a block, stores into."""
    if type(target) is ast.Name:
        return frozenset((target.id,)) if isinstance(target.ctx, ast.Store) else frozenset()
    return frozenset(n.id for n in walk(target) if type(n) is ast.Name and isinstance(n.ctx, ast.Store))


class _Walk:
    """Visitor of statements in order of execution that records reads before bindings.

    Branches share the reads but have separate bindings.
    """

    def __init__(self, lazy_annotations: bool) -> None:
        self.lazy_annotations = lazy_annotations
        self.reads, self.soft = set[str](), set[str]()
        self.late: set[str] = set()
        self.globals_bound: set[str] = set()
        self.binds, self.kills = set[str](), set[str]()
        self.likely: set[str] = set()  # bound if each loop has an iteration; contains `kills`
        self.bound, self.early = set[str](), set[str]()  # read when likely bound; read in a branch before all bindings
        self.deletes: set[str] = set()
        self.dead = False  # after break, continue, raise
        self.loop_binds: frozenset[str] = frozenset()
        self.is_conditional = False  # inside a branch of the innermost loop
        self.exits: list[set[str]] = []  # names certainly bound at each break and continue
        self.sure, self.frequent = set[str](), set[str]()  # reads outside all branches; reads in branches of loops, too
        self.is_in_branch = self.is_in_loop = self.is_rare = False
        self.may_be_first = True  # in no branch that a loop skips at its start

    def flow(self) -> Flow:
        return Flow(
            reads=frozenset(self.reads),
            soft=frozenset((self.soft | self.bound) - self.reads),
            late=frozenset(self.late),
            binds=frozenset(self.binds),
            kills=frozenset(self.kills),
            likely=frozenset(self.likely),
            deletes=frozenset(self.deletes),
            globals_bound=frozenset(self.globals_bound),
            conditional=frozenset(self.reads - self.sure),
            rare=frozenset(self.reads - self.frequent),
            bound=frozenset(self.bound - self.soft - self.reads),
            early=frozenset(self.early - self.reads),
        )

    # names
    def read(self, name: str) -> None:
        if name in self.kills:
            return
        if name in self.likely:
            self.bound.add(name)
        elif name in self.binds or (self.is_conditional and name in self.loop_binds):
            self.soft.add(name)
            self.early |= {name} - self.binds if self.may_be_first else set()
        else:
            self.reads.add(name)
            if not self.is_in_branch:
                self.sure.add(name)
            if not self.is_rare:
                self.frequent.add(name)

    def bind(self, name: str) -> None:
        for names in (self.binds, self.kills, self.likely):
            names.add(name)
        self.deletes.discard(name)

    def delete(self, name: str) -> None:
        self.read(name)
        for names in (self.binds, self.kills, self.likely):
            names.discard(name)
        self.deletes.add(name)

    # branches
    def branch(self) -> _Walk:
        other = _Walk(self.lazy_annotations)
        other.reads, other.soft, other.late, other.globals_bound = self.reads, self.soft, self.late, self.globals_bound
        other.binds, other.kills, other.deletes = set(self.binds), set(self.kills), set(self.deletes)
        other.likely, other.bound, other.early = set(self.likely), self.bound, self.early
        other.loop_binds, other.is_conditional, other.exits = self.loop_binds, True, self.exits
        other.sure, other.frequent, other.is_in_branch = self.sure, self.frequent, self.is_in_branch
        other.is_in_loop, other.is_rare, other.may_be_first = self.is_in_loop, self.is_rare, self.may_be_first
        return other

    def option(self, *, is_rare: bool = False) -> _Walk:
        """Return a visitor for a branch that may not run."""
        other = self.branch()
        other.is_in_branch, other.is_rare = True, self.is_rare or is_rare
        return other

    def join(self, branches: Sequence[_Walk]) -> None:
        """Merge branches. Names that only some of them bind or delete are possibly bound."""
        alive = [b for b in branches if not b.dead]
        self.binds = set().union(*(b.binds for b in branches))
        self.dead = self.dead or not alive
        sure = alive or list(branches)
        self.kills = set(sure[0].kills).intersection(*(b.kills for b in sure[1:]))
        self.likely = set(sure[0].likely).intersection(*(b.likely for b in sure[1:]))
        everywhere = set(sure[0].deletes).intersection(*(b.deletes for b in sure[1:]))
        self.binds |= set().union(*(b.deletes for b in branches)) - everywhere
        self.deletes = everywhere

    # statements
    def block(self, nodes: Iterable[ast.stmt]) -> None:
        for node in nodes:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.ClassDef():
                self._class(node)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    if isinstance(node, ast.Import) and alias.asname is None and "." in alias.name:
                        self.binds.add(alias.name.partition(".")[0])  # extends an earlier import of the package
                        self.deletes.discard(alias.name.partition(".")[0])
                    elif alias.name != "*":
                        self.bind(alias.asname or alias.name)
            case ast.Assign(targets=targets, value=value):
                self.expression(value)
                for target in targets:
                    self.target(target)
            case ast.AugAssign(target=target, value=value):
                if isinstance(target, ast.Name):
                    self.read(target.id)
                self.expression(value)
                self.target(target)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                self.annotation(annotation)
                if value is not None:
                    self.expression(value)
                    self.target(target)
            case ast.Delete(targets=targets):
                for target in targets:
                    self._delete(target)
            case (
                ast.For(target=target, iter=source, body=body, orelse=orelse)
                | ast.AsyncFor(target=target, iter=source, body=body, orelse=orelse)
            ):
                self.expression(source)
                self._loop(node, target, body, runs=is_never_empty(source))
                self.block(orelse)
            case ast.While(test=test, body=body, orelse=orelse):
                self.expression(test)
                self._loop(node, None, body, runs=isinstance(test, ast.Constant) and bool(test.value))
                self.block(orelse)
            case ast.If(test=test, body=body, orelse=orelse):
                self._if(test, body, orelse)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    self.expression(item.context_expr)
                    if item.optional_vars is not None:
                        self.target(item.optional_vars)
                self._with(body, is_certain=not any(swallows_errors(item.context_expr) for item in items))
            case ast.Try() | ast.TryStar():
                self._try(node)
            case ast.Match():
                self._match(node)
            case ast.Break() | ast.Continue():
                self.exits.append(set(self.kills))
                self.dead = True
            case ast.Raise() | ast.Return():
                self.expression(node)
                self.dead = True
            case ast.Global() | ast.Nonlocal() | ast.Pass():
                return
            case _:
                self._other(node)

    def _other(self, node: ast.stmt) -> None:
        name = getattr(node, "name", None)
        if type(node).__name__ == "TypeAlias" and isinstance(name, ast.Name):  # Python 3.12; its value is lazy
            self.late |= {n.id for n in walk(node) if isinstance(n, ast.Name)} - {name.id}
            self.bind(name.id)
        else:
            self.expression(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.expression(decorator)
        self._signature(node)
        self.bind(node.name)

    def _signature(self, node: Function) -> None:
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.expression(default)
        args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        notes = [a.annotation for a in args if a is not None]
        if not isinstance(node, ast.Lambda):
            notes.append(node.returns)
        own = {p.name for p in getattr(node, TYPE_PARAMS, [])}
        for note in notes:
            if note is not None:
                self.annotation(note, own)
        free = free_names(node)
        self.late |= free.reads | free.globals_read
        self.globals_bound |= free.globals_bound

    def _class(self, node: ast.ClassDef) -> None:
        for part in [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]:
            self.expression(part)
        inside = _Walk(self.lazy_annotations)
        inside.block(node.body)
        own = {p.name for p in getattr(node, TYPE_PARAMS, [])} | {"__class__", "__qualname__", "__module__"}
        for name in sorted(inside.reads - own):
            self.read(name)
        self.soft |= inside.soft - self.kills
        self.late |= inside.late - {"__class__"}
        self.globals_bound |= inside.globals_bound
        self.bind(node.name)

    def _if(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        self.expression(test)
        if is_always_true(test):
            self.block(body)
            return
        before = set(self.reads) if (tested := looked_up_in(test)) else self.reads
        yes, no = (self.option(is_rare=not self.is_in_loop) for _ in range(2))
        yes.may_be_first, no.may_be_first = self.may_be_first and is_true_at_start(test), False
        yes.block(body)
        no.block(orelse)
        self.join([yes, no])
        self._soften(tested, before)

    def _loop(self, node: ast.stmt, target: ast.expr | None, body: list[ast.stmt], *, runs: bool) -> None:
        inside, before = self.branch() if runs else self.option(), self.branch()
        inside.is_in_loop = True
        inside.loop_binds, inside.is_conditional, inside.exits = bound_names(node), False, []
        if target is not None:
            inside.target(target)
        inside.block(body)
        inside.dead = False
        for kills in inside.exits:
            inside.kills &= kills
        self.join([inside] if runs else [inside, before])
        self.likely = inside.likely - self.deletes

    def _with(self, body: list[ast.stmt], *, is_certain: bool) -> None:
        inside = self if is_certain else self.branch()
        inside.is_conditional = self.is_conditional
        inside.block(body)
        self.join([inside] if is_certain else [inside, self.branch()])

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        main = self.branch()
        main.is_conditional = self.is_conditional
        main.is_rare = self.is_rare or any(catches_names(handler.type) for handler in node.handlers)
        main.is_in_branch = self.is_in_branch or main.is_rare
        main.block(node.body)
        main.is_rare, main.is_in_branch = self.is_rare, self.is_in_branch
        handlers = []
        for handler in node.handlers:
            caught = self.option(is_rare=True)  # the body may have stopped anywhere: none of it is certain
            caught.binds |= main.binds
            if handler.type is not None:
                caught.expression(handler.type)
            caught.is_rare = self.is_rare
            if handler.name is not None:
                caught.bind(handler.name)
            caught.block(handler.body)
            if handler.name is not None:  # Python unbinds it at the end of the handler
                for names in (caught.binds, caught.kills, caught.likely):
                    names.discard(handler.name)
            handlers.append(caught)
        main.block(node.orelse)
        self.join([main, *handlers])
        self.block(node.finalbody)

    def _match(self, node: ast.Match) -> None:
        self.expression(node.subject)
        branches, is_complete = [], False
        for case in node.cases:
            way = self.option()
            way.pattern(case.pattern)
            if case.guard is not None:
                way.expression(case.guard)
            way.block(case.body)
            branches.append(way)
            is_default = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
            is_complete = is_complete or (is_default and case.guard is None)
        self.join(branches if is_complete else [*branches, self.branch()])

    def pattern(self, node: ast.pattern) -> None:
        for part in walk(node):
            match part:
                case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                    self.bind(name)
                case ast.Name(id=name):
                    self.read(name)
                case _:
                    continue

    def target(self, node: ast.expr) -> None:
        match node:
            case ast.Name(id=name):
                self.bind(name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self.target(part)
            case ast.Starred(value=inner):
                self.target(inner)
            case _:
                self.expression(node)

    def _delete(self, node: ast.expr) -> None:
        match node:
            case ast.Name(id=name):
                self.delete(name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._delete(part)
            case _:
                self.expression(node)

    def annotation(self, node: ast.expr, own: Iterable[str] = ()) -> None:
        """Visit an annotation, which is evaluated immediately (not strings) unless made lazy by the future import."""
        for part in walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                self.soft |= names_in_text(part.value) - set(own)
        if self.lazy_annotations:
            self.soft |= {n.id for n in walk(node) if isinstance(n, ast.Name)} - set(own)
        else:
            inside = self.branch()
            inside.kills |= set(own)
            inside.expression(node)

    # expressions
    def expression(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name):
                self.read(name)
            case ast.Constant():
                return
            case ast.NamedExpr(target=target, value=value):
                self.expression(value)
                self.bind(target.id)
            case ast.Lambda():
                self._signature(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node)
            case ast.BoolOp(values=[first, *others]):
                self.expression(first)
                self._maybe(others)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.expression(test)
                before = set(self.reads) if (tested := looked_up_in(test)) else self.reads
                self._maybe([body], [orelse])
                self._soften(tested, before)
            case _:
                in_text = (looked_up(node) | names_expanded(node)) - self.kills
                self.soft |= in_text
                self.early |= in_text - self.binds
                for child in ast.iter_child_nodes(node):
                    self.expression(child)

    def _soften(self, tested: frozenset[str], before: set[str]) -> None:
        """Mark names read below a test for their existence as soft reads."""
        for name in tested & self.reads - before:
            self.reads.discard(name)
            self.soft.add(name)
            self.early.add(name)

    def _maybe(self, *ways: Sequence[ast.AST]) -> None:
        branches = []
        for nodes in ways:
            way = self.option()
            way.is_conditional = self.is_conditional
            for node in nodes:
                way.expression(node)
            branches.append(way)
        self.join(branches if len(branches) > 1 else [*branches, self.branch()])

    def _comprehension(self, node: Comprehension) -> None:
        self.expression(node.generators[0].iter)
        scope = _Scope()
        scope.visit(node)
        for name in sorted(scope.reads - scope.stores):
            self.read(name)
        self.soft |= (scope.reads & scope.stores) - self.kills  # bound by its own walrus, before or after
        self.late |= scope.late
        self.globals_bound |= scope.globals_bound
        for name in sorted(scope.stores):  # only walrus targets leave a comprehension
            self.binds.add(name)


class _Scope(ast.NodeVisitor):
    """All names of a function scope, unordered: the order inside a function does not matter outside."""

    def __init__(self) -> None:
        self.reads: set[str] = set()
        self.late: set[str] = set()  # of lambdas inside a comprehension: see _Walk._comprehension
        self.stores: set[str] = set()
        self.declared_global: set[str] = set()
        self.declared_nonlocal: set[str] = set()
        self.globals_read: set[str] = set()
        self.globals_bound: set[str] = set()

    def free(self, local: Iterable[str]) -> Free:
        own = (self.stores | set(local)) - self.declared_global - self.declared_nonlocal
        reads = ((self.reads | self.late) - own - self.declared_global) | self.declared_nonlocal
        globals_read = self.globals_read | ((self.reads | self.late) & self.declared_global)
        globals_bound = self.globals_bound | (self.stores & self.declared_global)
        return Free(frozenset(reads), frozenset(globals_read), frozenset(globals_bound))

    def visit_Name(self, node: ast.Name) -> None:
        (self.reads if isinstance(node.ctx, ast.Load) else self.stores).add(node.id)

    def visit_Call(self, node: ast.Call) -> None:
        self.reads |= {name for name in names_expanded(node) if not name.isupper()}  # `$HOME` is a shell variable
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.declared_global |= set(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.declared_nonlocal |= set(node.names)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.reads.add(node.target.id)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if not isinstance(node.target, ast.Name):
            self.visit(node.target)
        elif node.value is not None:
            self.stores.add(node.target.id)
        if node.value is not None:
            self.visit(node.value)  # the annotation of a local variable is never evaluated

    def visit_Import(self, node: ast.Import) -> None:
        self.stores |= {a.asname or a.name.partition(".")[0] for a in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.stores |= {a.asname or a.name for a in node.names}

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name is not None:
            self.stores.add(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name is not None:
            self.stores.add(node.name)
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name is not None:
            self.stores.add(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest is not None:
            self.stores.add(node.rest)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inner(node)
        self.stores.add(node.name)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._inner(node)
        self.stores.add(node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._inner(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        walk = _Walk(lazy_annotations=True)
        walk.statement(node)
        self.reads |= walk.reads | walk.soft
        self.late |= walk.late
        self.globals_bound |= walk.globals_bound
        self.stores.add(node.name)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node)

    def _comprehension(self, node: Comprehension) -> None:
        inside = _Scope()
        inside.generic_visit(node)
        own = frozenset().union(*(bound_names(g.target) for g in node.generators))
        walrus = {n.target.id for n in walk(node) if isinstance(n, ast.NamedExpr)}
        self.reads |= inside.reads - own
        self.late |= inside.late - own
        self.stores |= walrus
        self.globals_read |= inside.globals_read
        self.globals_bound |= inside.globals_bound

    def _inner(self, node: Function) -> None:
        outside: list[ast.expr | None] = [*node.args.defaults, *node.args.kw_defaults]
        if not isinstance(node, ast.Lambda):
            outside += node.decorator_list
        for part in outside:
            if part is not None:
                self.visit(part)
        free = free_names(node)
        self.late |= free.reads
        self.globals_read |= free.globals_read
        self.globals_bound |= free.globals_bound
