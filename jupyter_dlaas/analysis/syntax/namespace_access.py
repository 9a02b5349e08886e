"""Statements that use names through the namespace or as text, rewritten as if they used the names directly. Pure.

`globals()["lr"] = 0.1` is `lr = 0.1` to the data flow, `exec("n += 1")` is `n += 1`, and `df.query("x > @cut")` reads
`cut`. The program itself keeps the statement as it was typed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any, Final, TypeGuard

from jupyter_dlaas.analysis.syntax.flow import Flow
from jupyter_dlaas.analysis.syntax.names import walk

__all__ = ["NamespaceAccess", "Rewritten", "is_mentioned"]

_MENTIONS: Final = re.compile(
    r"\b(globals|locals|vars|exec|eval|user_ns|user_global_ns|__main__|modules|builtins|run_cell|push|ex|ev|query|sql"
    r"|evaluate|sqldf|dmatrix|dmatrices|ols|logit|glm|gls|wls|mixedlm|from_formula)\b"
)
_SPACES: Final = re.compile(r"\b(globals|locals|vars|user_ns|user_global_ns|__main__|modules)\b")
_QUERIES: Final = frozenset({"query", "eval", "sql", "evaluate", "sqldf", "execute"})
_FORMULAS: Final = frozenset({"dmatrix", "dmatrices", "ols", "logit", "glm", "gls", "wls", "mixedlm", "from_formula"})
_AT_NAME: Final = re.compile(r"@([A-Za-z_]\w*)")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_PERCENT: Final = re.compile(r"%[^a-zA-Z]*[a-zA-Z]")
_BRACES: Final = re.compile(r"\{[^}]*\}")
_DEFINITIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_SHELL: Final = frozenset({"user_ns", "user_global_ns", "push", "run_cell", "ex", "ev"})


def is_mentioned(source: str) -> bool:
    """Return whether a text may use the dictionary of the notebook's variables."""
    return _SPACES.search(source) is not None


class Rewritten:
    """A statement as the data flow sees it, and what could not be expressed as a statement."""

    def __init__(self, node: ast.stmt) -> None:
        self.node = node
        self.soft: set[str] = set()  # names in text that may be read
        self.late: set[str] = set()  # such names in function bodies
        self.needs_shell = False  # it works by IPython's API, which a job does not have
        self.runs_text = False  # by exec(), with a text that is not known

    def completed(self, flow: Flow, typed: Flow) -> Flow:
        """Return the statement's flow with the names in its text, and those that it reads as it was `typed`."""
        reads = flow.reads | typed.reads
        soft = (flow.soft | typed.soft | self.soft) - reads
        bound = flow.bound - reads - self.soft - (typed.soft - typed.bound)
        early = (flow.early | typed.early | self.soft) - reads
        return replace(flow, reads=reads, soft=soft, bound=bound, early=early, late=flow.late | typed.late | self.late)


class NamespaceAccess:
    """Aliases of namespaces and texts of the notebook so far."""

    def __init__(self) -> None:
        self.spaces: set[str] = set()  # `g = globals()`
        self.mains: set[str] = set()  # `import __main__`
        self.shells: set[str] = set()  # `ip = get_ipython()`
        self.texts: dict[str, str] = {}
        self.dynamic: set[str] = set()  # own functions that run a text that they are given
        self.binding: set[str] = set()  # own functions that bind names that they are given
        self.names: set[str] = set()  # all variables of the notebook
        self.strings: set[str] = set()  # all identifiers in its strings and keywords

    def read(self, nodes: Iterable[ast.AST | None]) -> None:
        """Collect the names that a computed text may denote: `globals()[name] = 1`."""
        for node in nodes:
            if node is not None:
                parts = [part for part in walk(node) if isinstance(part, ast.Name)]
                self.names |= {part.id for part in parts}
                self.strings |= _words_in_strings(node)
                self.strings |= {part.arg for part in walk(node) if isinstance(part, ast.keyword) and part.arg}

    def rewritten(self, node: ast.stmt, source: str, seen: Set[str]) -> Rewritten:
        """Return a statement with direct names. `seen`: the names that are bound so far."""
        found = Rewritten(node)
        is_plain = _MENTIONS.search(source) is None
        aliases = self.spaces | self.mains | self.shells | self.binding
        if is_plain and not (aliases or self.dynamic):
            self._note(node)
            return found
        words = set(_WORD.findall(source))
        if is_plain and words.isdisjoint(aliases | self.dynamic):
            self._note(node)
            return found
        rewriter = _Rewriter(self, found, seen)
        copied = _clone(node)
        done = rewriter.statement(copied)
        found.node = done
        if not words.isdisjoint(self.binding) and not isinstance(node, _DEFINITIONS):
            names = _words_in_strings(node) & self.names
            found.node = rewriter.block(
                [done, *_perhaps(ast.List([], ast.Load()), names, ast.Constant(value=None))], node
            )
        if not words.isdisjoint(self.dynamic):
            found.soft |= _words_in_strings(node) & seen
        self._note(node)
        if rewriter.is_dynamic and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.dynamic.add(node.name)
        if rewriter.binds_any and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.binding.add(node.name)
        return found

    def _note(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                for group in (self.spaces, self.mains, self.shells, self.dynamic, self.binding):
                    group.discard(name)
                self.texts.pop(name, None)
                match value:
                    case ast.Constant(value=str(text)):
                        self.texts[name] = text
                    case ast.Call(func=ast.Name(id="get_ipython")):
                        self.shells.add(name)
                    case _ if self.is_space(value):
                        self.spaces.add(name)
                    case _ if self.is_main(value):
                        self.mains.add(name)
            case ast.Import(names=names):
                self.mains |= {alias.asname or "__main__" for alias in names if alias.name == "__main__"}
            case ast.AugAssign(target=ast.Name(id=name)):
                self.texts.pop(name, None)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.texts.pop(node.name, None)
                self.dynamic.discard(node.name)
                self.binding.discard(node.name)
            case ast.For() | ast.While() | ast.If() | ast.With() | ast.Try():
                for part in walk(node):
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        self.texts.pop(part.id, None)
            case _:
                return

    def is_space(self, node: ast.AST) -> bool:
        """Return whether an expression is the dictionary of the notebook's variables."""
        match node:
            case ast.Call(func=ast.Name(id="globals" | "vars" | "locals"), args=[]):
                return True
            case ast.Call(func=ast.Name(id="vars"), args=[main]) | ast.Attribute(value=main, attr="__dict__"):
                return self.is_main(main)
            case ast.Attribute(value=shell, attr="user_ns" | "user_global_ns"):
                return self.is_shell(shell)
            case ast.Name(id=name):
                return name in self.spaces
            case _:
                return False

    def is_main(self, node: ast.AST) -> bool:
        """Return whether an expression is the notebook's module."""
        match node:
            case ast.Name(id=name):
                return name in self.mains
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id="sys"), attr="modules"),
                slice=ast.Constant(value="__main__") | ast.Name(id="__name__"),
            ):
                return True
            case _:
                return False

    def is_shell(self, node: ast.AST) -> bool:
        """Return whether an expression is IPython's shell."""
        match node:
            case ast.Call(func=ast.Name(id="get_ipython")):
                return True
            case ast.Name(id=name):
                return name in self.shells
            case _:
                return False


class _Rewriter(ast.NodeTransformer):
    def __init__(self, access: NamespaceAccess, found: Rewritten, seen: Set[str]) -> None:
        self.access, self.found, self.seen = access, found, seen
        self.globals: list[set[str]] = []  # one set per function around the node
        self.locals: list[set[str]] = []
        self.is_dynamic = False
        self.binds_any = False  # a function that binds names that it is given
        self.strings = _words_in_strings(found.node)

    def statement(self, node: ast.stmt) -> ast.stmt:
        done = self.visit(node)
        return self.block(done if isinstance(done, list) else [done], node)

    @staticmethod
    def block(nodes: list[ast.stmt], node: ast.stmt) -> ast.stmt:
        """Return one statement in the place of another."""
        done = nodes[0] if len(nodes) == 1 else ast.If(ast.Constant(value=True), nodes or [ast.Pass()], [])
        ast.copy_location(done, node)
        return ast.fix_missing_locations(done)

    # functions
    def visit_FunctionDef(self, node: Any) -> Any:
        args = node.args
        given = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        bound = {part.id for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        self.globals.append(set())
        self.locals.append({arg.arg for arg in given if arg is not None} | bound)
        self.generic_visit(node)
        declared = sorted(self.globals.pop() - self.locals.pop())
        if declared:
            node.body.insert(0, ast.Global(names=declared))
        return node

    def visit_AsyncFunctionDef(self, node: Any) -> Any:
        return self.visit_FunctionDef(node)

    def _name(self, name: str, context: ast.expr_context) -> ast.Name:
        if self.globals and not isinstance(context, ast.Load):
            self.globals[-1].add(name)
        return ast.Name(id=name, ctx=context)

    def _is_space(self, node: ast.AST) -> bool:
        if not self.access.is_space(node):
            return False
        match node:
            case ast.Call(func=ast.Name(id="vars" | "locals"), args=[]):
                return not self.globals  # of a function, they are others
            case ast.Attribute(attr="user_ns" | "user_global_ns"):
                self.found.needs_shell = True
        return True

    def _is_here(self, spaces: list[ast.expr]) -> bool:
        """Return whether a text runs in the notebook's namespace, and not in one that it is given."""
        return not spaces or self._is_space(spaces[0])

    # names
    def visit_Subscript(self, node: ast.Subscript) -> Any:
        name = _text(node.slice)
        if name is not None and not isinstance(node.ctx, ast.Load) and self._is_space(node.value):
            return self._name(name, node.ctx)
        if name is None and isinstance(node.ctx, ast.Load) and self._is_space(node.value):
            self._may_read(self._denoted(node.slice) & self.seen)
        node.value = self._object(node.value)
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if self.access.is_main(node.value) and not node.attr.startswith("__"):
            return self._name(node.attr, node.ctx)
        node.value = self._object(node.value)
        return self.generic_visit(node)

    def _object(self, node: ast.expr) -> ast.expr:
        """Return the name for `globals()["items"]` and `globals().get("items")`, of which something is used."""
        match node:
            case ast.Subscript(value=space, slice=key) if (name := _text(key)) is not None and self._is_space(space):
                return self._name(name, ast.Load())
            case ast.Call(func=ast.Attribute(value=space, attr="get"), args=[key, *_]) if (
                name := _text(key)
            ) is not None and self._is_space(space):
                return self._name(name, ast.Load())
            case _:
                return node

    # statements
    def visit_Assign(self, node: ast.Assign) -> Any:
        for target in list(node.targets):
            match target:
                case ast.Attribute(value=ast.Name(id="builtins" | "__builtins__"), attr=name):
                    node.targets.append(self._name(name, ast.Store()))
        keys = [target.slice for target in node.targets if self._is_computed(target)]
        return self._also_bound(node, keys, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        keys = [node.target.slice] if isinstance(node.target, ast.Subscript) and self._is_computed(node.target) else []
        return self._also_bound(node, keys, node.value)

    def _is_computed(self, target: ast.expr) -> TypeGuard[ast.Subscript]:
        return isinstance(target, ast.Subscript) and _text(target.slice) is None and self._is_space(target.value)

    def _also_bound(
        self, node: ast.stmt, keys: Sequence[ast.expr | None], value: ast.expr, test: ast.expr | None = None
    ) -> Any:
        """Return a statement, and bindings of the names that computed texts may denote."""
        found: list[ast.stmt] = []
        for key in keys:
            self.binds_any = self.binds_any or bool(self.globals)
            names = self._denoted(key) - (self.locals[-1] if self.locals else set())
            if self.globals:
                self.globals[-1] |= names
            found += _perhaps(self.visit(_clone(test or key)), names, self.visit(_clone(value)))
        done = self.generic_visit(node)
        return [done, *found] if found else done

    def _denoted(self, key: ast.expr | None) -> Set[str]:
        """Return the names that a text may denote: all that fit `f"model_{i}"`, else those in strings."""
        if key is not None and (text := self._known(key)) is not None:
            return {text} & self.access.names
        if key is not None and (pattern := _pattern_of(key)) is not None:
            return {name for name in self.access.names if pattern.fullmatch(name)}
        return set() if self.globals else self.access.names & self.access.strings

    def visit_Expr(self, node: ast.Expr) -> Any:
        match node.value:
            case ast.Call(func=ast.Name(id="exec"), args=[code, *spaces]) if self._is_here(spaces):
                return self._executed(node, code)
            case ast.Call(func=ast.Name(id="eval"), args=[code, *spaces]) if (
                self._is_here(spaces) and (text := self._known(code)) is not None
            ):
                return self._block(text, node)
            case ast.Call(func=ast.Name(id="setattr"), args=[main, key, value]) if (
                name := _text(key)
            ) is not None and self.access.is_main(main):
                return self._assigned({name: value})
            case ast.Call(func=ast.Name(id="setattr"), args=[main, key, value]) if self.access.is_main(main):
                return self._also_bound(node, [key], value)
            case ast.Call(func=ast.Attribute(value=space, attr="update"), args=args, keywords=options) if (
                values := _entries(args, options)
            ) is not None and self._is_space(space):
                return self._assigned(values)
            case ast.Call(func=ast.Attribute(value=space, attr="update"), args=[values]) if self._is_space(space):
                keys = values.keys if isinstance(values, ast.Dict) else [getattr(values, "key", None)]
                return self._also_bound(node, keys, values, test=values)
            case ast.Call(func=ast.Attribute(value=space, attr="pop"), args=[key, *_]) if (
                name := _text(key)
            ) is not None and self._is_space(space):
                return ast.Delete(targets=[self._name(name, ast.Del())])
            case ast.Call(func=ast.Attribute(value=space, attr="setdefault"), args=[key, *_]) if (
                name := _text(key)
            ) is not None and self._is_space(space):
                self.found.soft.add(name)
                self.generic_visit(node)
                return ast.Assign(targets=[self._name(name, ast.Store())], value=node.value)
            case ast.Call(func=ast.Attribute(value=shell, attr=verb), args=args, keywords=options) if (
                verb in _SHELL and self.access.is_shell(shell)
            ):
                return self._by_shell(node, verb, args, options)
        return self.generic_visit(node)

    def _by_shell(self, node: ast.Expr, verb: str, args: list[ast.expr], options: list[ast.keyword]) -> Any:
        self.found.needs_shell = True
        values = _entries(args, options) if verb == "push" else None
        if values is not None:
            return self._assigned(values)
        text = self._known(args[0]) if args and verb in {"run_cell", "ex", "ev"} else None
        if text is None:
            self.found.runs_text = True
            return self.generic_visit(node)
        return self._block(text, node)

    def _assigned(self, values: dict[str, ast.expr]) -> list[ast.stmt]:
        return [
            ast.Assign(targets=[self._name(name, ast.Store())], value=self.visit(value))
            for name, value in values.items()
        ]

    def _executed(self, node: ast.Expr, code: ast.expr) -> Any:
        match code:
            case ast.Call(func=ast.Name(id="compile"), args=[inner, *_]):
                code = inner
        if (text := self._known(code)) is not None:
            return self._block(text, node)
        self.found.soft |= _words_in_strings(code) & self.seen
        self.found.runs_text = not self.globals
        self.is_dynamic = True
        return self.generic_visit(node)

    def _block(self, text: str, node: ast.Expr) -> Any:
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError):
            return node
        return [self.statement(one) for one in body] or [ast.Pass()]

    def _known(self, code: ast.expr) -> str | None:
        match code:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id=name) if not self.locals or name not in self.locals[-1]:
                return self.access.texts.get(name)
            case _:
                return None

    # expressions
    def visit_Call(self, node: ast.Call) -> Any:
        match node:
            case ast.Call(func=ast.Name(id="eval"), args=[code, *spaces]) if self._is_here(spaces):
                if (text := self._known(code)) is not None:
                    try:
                        return self.visit(ast.parse(text.strip(), mode="eval").body)
                    except (SyntaxError, ValueError):
                        return node
                self.is_dynamic = True
                self._may_read(_words_in_strings(code) & self.seen)
            case ast.Call(func=ast.Attribute(attr=verb) | ast.Name(id=verb), args=[code, *_]) if (
                verb in _QUERIES | _FORMULAS and (text := self._known(code)) is not None
            ):
                names = set(_AT_NAME.findall(text))
                if verb in _FORMULAS or (verb in {"sql", "evaluate", "sqldf"}):
                    names |= set(_WORD.findall(text)) & self.seen
                self._may_read(names)
            case ast.Call(func=ast.Attribute(value=space, attr="items" | "keys" | "values" | "copy"), args=[]) if (
                self._is_space(space)
            ):
                self._may_read(self.strings & self.seen)
            case ast.Call(func=ast.Name(id="getattr"), args=[main, key, *_]) if (
                name := _text(key)
            ) is not None and self.access.is_main(main):
                self._may_read({name})
        return self.generic_visit(node)

    def _may_read(self, names: Set[str]) -> None:
        if self.locals:
            self.found.late |= names - frozenset().union(*self.locals)
        else:
            self.found.soft |= names


def _text(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)) if text.isidentifier():
            return text
        case _:
            return None


def _pattern_of(key: ast.expr) -> re.Pattern[str] | None:
    """Return what `f"model_{i}"`, `"model_%d" % i`, `"model_" + name` and the like match; None if all is computed."""
    match key:
        case ast.JoinedStr(values=parts):
            texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            texts = _split(_PERCENT, text)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            texts = _split(_BRACES, text)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            sides = (_pattern_of(left), _pattern_of(right))
            return (
                None
                if sides == (None, None)
                else re.compile("".join(r"\w*" if s is None else s.pattern for s in sides))
            )
        case ast.Constant(value=str(text)):
            texts = [text]
        case _:
            return None
    if not any(texts):
        return None
    return re.compile("".join(r"\w*" if text is None else re.escape(str(text)) for text in texts))


def _split(holes: re.Pattern[str], text: str) -> list[Any]:
    """Return the parts of a text, with None for each hole."""
    first, *others = holes.split(text)
    return [first, *(part for other in others for part in (None, other))]


def _perhaps(test: ast.expr, names: Set[str], value: ast.expr) -> list[ast.stmt]:
    """Return a statement that may bind each of the names to the value; nothing without names."""
    bindings: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], value) for name in sorted(names)]
    branches: list[ast.stmt] = [ast.If(test, [binding], []) for binding in bindings]
    return branches


def _entries(args: list[ast.expr], options: list[ast.keyword]) -> dict[str, ast.expr] | None:
    """Return the variables that a dictionary display or keywords bind; None if they are not all known."""
    found: dict[str, ast.expr] = {}
    for arg in args:
        if not isinstance(arg, ast.Dict):
            return None
        for key, value in zip(arg.keys, arg.values, strict=True):
            name = _text(key) if key is not None else None
            if name is None:
                return None
            found[name] = value
    for option in options:
        if option.arg is None:
            return None
        found[option.arg] = option.value
    return found or None


def _words_in_strings(node: ast.AST) -> set[str]:
    """Return the identifiers in all strings, such as `base` in `f"w{i} = base + {i}"`."""
    texts = (part.value for part in walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return {word for text in texts for word in _WORD.findall(text)}


def _clone(node: Any) -> Any:
    """Copy a tree by its fields only: other tools add attributes to nodes that lead to cycles."""
    if isinstance(node, list):
        return [_clone(part) for part in node]
    if not isinstance(node, ast.AST):
        return node
    made = type(node)(**{name: _clone(value) for name, value in _fields(node)})
    for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
        if hasattr(node, name):
            setattr(made, name, getattr(node, name))
    return made


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(node, name)) for name in node._fields if hasattr(node, name))
