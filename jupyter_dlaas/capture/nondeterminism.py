"""Statements that give another value on each run: unseeded draws, clocks, unique names, orders of sets. Pure.

Findings are certain from the text: library functions that are known to draw, called directly or through the notebook's
own functions. Initial weights of layers are not reported: a job starts with new ones.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from jupyter_dlaas.analysis.effects import verb_of, words
from jupyter_dlaas.analysis.model import KernelFacts, NameFact
from jupyter_dlaas.analysis.steps import Step
from jupyter_dlaas.analysis.syntax.names import LEAVES, children, root_name, walk
from jupyter_dlaas.capture import remote_reads
from jupyter_dlaas.capture.set_order import order_seen

__all__ = ["LIBRARIES", "Draw", "Kind", "Scan", "ends_by_interrupt", "ends_early", "scan"]

LIBRARIES: Final = ("random", "numpy.random", "torch", "tensorflow", "keras")
"""Global random streams, by the names under which the kernel records them."""
_PYTHON: Final = words(
    """random randint randrange choice choices sample shuffle uniform gauss normalvariate triangular betavariate
    expovariate gammavariate lognormvariate vonmisesvariate paretovariate weibullvariate getrandbits randbytes
    binomialvariate"""
)
_NO_DRAWS: Final = words(
    """seed get_state set_state Generator SeedSequence BitGenerator PCG64 PCG64DXSM MT19937 Philox SFC64"""
)
_TORCH: Final = words(
    """rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial poisson"""
)
_TORCH_IN_PLACE: Final = words("normal_ uniform_ random_ exponential_ cauchy_ geometric_ log_normal_ bernoulli_")
_TENSORFLOW: Final = words("normal uniform truncated_normal gamma poisson shuffle categorical")
_KERAS: Final = words("normal uniform truncated_normal gamma binomial beta randint categorical shuffle")
_CLOCKS: Final = words(
    """time.time time.time_ns time.ctime time.localtime time.gmtime datetime.datetime.now datetime.datetime.utcnow
    datetime.datetime.today datetime.date.today pandas.Timestamp.now pandas.Timestamp.today pandas.Timestamp.utcnow"""
)
_OF_NOW: Final = {"time.strftime": 1, "time.asctime": 0}
"""Number of arguments with which these functions return the present time."""
_UNIQUE: Final = words(
    """uuid.uuid1 uuid.uuid4 uuid.uuid6 uuid.uuid7 os.urandom os.getrandom tempfile.mkdtemp tempfile.mkstemp
    tempfile.mktemp tempfile.TemporaryDirectory tempfile.NamedTemporaryFile"""
)
_CONSTRUCTORS: Final = words("numpy.random.default_rng numpy.random.RandomState random.Random random.SystemRandom")
_SPLITTERS: Final = words(
    """ShuffleSplit GroupShuffleSplit StratifiedShuffleSplit RepeatedKFold RepeatedStratifiedKFold"""
)
_QUIET_OF_GENERATORS: Final = words("seed getstate get_state setstate set_state spawn bit_generator")
_INTERRUPT: Final = "KeyboardInterrupt"
_BASES: Final = (_INTERRUPT, "BaseException")
_BARE: Final = f"{_INTERRUPT} in `except:`"
_TAKING: Final = words("next pop popleft get get_nowait read readline recv input exit send")
"""Calls that end a loop by an exception of their own, for example when nothing is left."""
_TRIES: Final = ast.Try | ast.TryStar
_LOOPS: Final = ast.For | ast.While | ast.AsyncFor
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


class Kind(StrEnum):
    STREAM = "stream"  # of a library's global stream, `library`
    GENERATOR = "generator"  # of a generator object without a seed
    CLOCK = "clock"
    UNIQUE = "unique"
    NETWORK = "network"
    DATABASE = "database"
    INTERRUPT = "interrupt"  # a loop that ends when the user interrupts it
    HASH = "hash"  # the order of a set, or hash(): differs between processes


@dataclass(frozen=True, slots=True)
class Draw:
    """Reason why a statement gives another value when it runs again."""

    kind: Kind
    what: str  # as code: "np.random.permutation"
    library: str = ""


@dataclass(frozen=True, slots=True)
class Scan:
    """Draws of the steps, and the full names behind the notebook's imports."""

    draws: Mapping[int, tuple[Draw, ...]]  # step -> its draws; steps without draws are absent
    loaders: frozenset[str]  # variables that are PyTorch data loaders: iteration draws a number
    names: Mapping[str, str]  # `np` -> "numpy", `split` -> "sklearn.model_selection.train_test_split"
    own_packages: frozenset[str] = frozenset()  # top-level names of the user's own modules

    def dotted(self, node: ast.expr) -> str:
        """Return the full name of a library's function; "" for everything else."""
        return _dotted(node, self.names)

    def is_irreproducible(self, call: ast.Call) -> bool:
        """Return whether a call reads a clock or something unique: `time.time()`, `os.urandom(4)`."""
        name = self.dotted(call.func)
        return name in _CLOCKS | _UNIQUE or name.startswith("secrets.")


def scan(steps: Sequence[Step], goal: int, facts: KernelFacts | None) -> Scan:
    """Scan the steps before the training cell, in order of execution."""
    scanner = _Scanner(facts)
    draws = {}
    for index, step in enumerate(steps[:goal]):
        if step.statement.node is None:
            continue
        scanner.is_interrupted = step.statement.is_interrupted
        found = scanner.step(step.statement.node)
        if ends_early(step) and all(draw.kind is not Kind.INTERRUPT for draw in found):
            found += (Draw(Kind.INTERRUPT, _INTERRUPT),)
        if found:
            draws[index] = found
    types = {name: fact.type_name for name, fact in facts.names.items()} if facts is not None else {}
    loaders = frozenset(name for name, kind in types.items() if kind.endswith(".DataLoader"))
    own = frozenset(module.name.partition(".")[0] for module in (facts.own_modules if facts is not None else ()))
    return Scan(draws, loaders, scanner.names, own)


class _Scanner:
    def __init__(self, facts: KernelFacts | None) -> None:
        self.facts = facts
        self.names: dict[str, str] = {}
        self.functions: dict[str, ast.AST] = {}  # own functions, and methods with a dot before their names
        self.generators: set[str] = set()
        self.splitters: set[str] = set()
        self.sets: set[str] = set()
        self.clients: set[str] = set()  # objects that read from the network
        self.is_near_address = False
        self.is_interrupted = False  # the statement's cell was interrupted and continued
        known = facts.names.items() if facts is not None else ()
        self.kernel_sets = {n for n, fact in known if fact.type_name in {"set", "frozenset"} and fact.has_text}

    def step(self, node: ast.stmt) -> tuple[Draw, ...]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
            return ()
        for part in ast.walk(node) if isinstance(node, ast.Try | ast.If) else ():
            if isinstance(part, ast.Import | ast.ImportFrom):
                self._import(part)
        if isinstance(node, _FUNCTIONS):
            self._bind(node.name)
            self.functions[node.name] = node
            return ()
        if isinstance(node, ast.ClassDef):
            self._bind(node.name)
            methods = [part for part in node.body if isinstance(part, _FUNCTIONS)]
            self.functions |= {f".{method.name}": method for method in methods}
            made = [method for method in methods if method.name in {"__init__", "__post_init__"}]
            self.functions[node.name] = ast.Module(body=list(made), type_ignores=[])
            return ()
        self.is_near_address = remote_reads.names_address(node, self._facts())
        found = self._draws([node], frozenset())
        self._note(node)
        return tuple(dict.fromkeys(found))

    def _facts(self) -> Mapping[str, NameFact]:
        return self.facts.names if self.facts is not None else {}

    # names
    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                self._bind(alias.asname or alias.name)
                self.names[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
            else:
                bound = alias.asname or alias.name.partition(".")[0]
                self._bind(bound)
                self.names[bound] = alias.name if alias.asname else bound

    def _bind(self, name: str) -> None:
        self.names.pop(name, None)
        self.functions.pop(name, None)
        for group in (self.generators, self.splitters, self.sets, self.clients):
            group.discard(name)

    def _note(self, node: ast.stmt) -> None:
        """Record the kinds of the names that a statement binds."""
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        for part in walk(node):
            if type(part) is ast.Name and type(part.ctx) is ast.Store:
                self._bind(part.id)
        for target in targets:
            if not isinstance(target, ast.Name) or value is None:
                continue
            if self._is_unseeded_generator(value):
                self.generators.add(target.id)
            elif self._is_unseeded_splitter(value):
                self.splitters.add(target.id)
            elif self._is_client(value):
                self.clients.add(target.id)
            elif order_seen([value], self.sets).is_set:
                self.sets.add(target.id)
            elif isinstance(value, ast.Lambda):
                self.functions[target.id] = value

    # draws
    def _draws(self, nodes: Iterable[ast.AST], seen: frozenset[str]) -> list[Draw]:
        nodes = list(nodes)
        found: list[Draw] = []
        for part in _running(nodes):
            if isinstance(part, _TRIES | _LOOPS | ast.With) and (
                what := ends_by_interrupt(part, was_interrupted=self.is_interrupted)
            ):
                found.append(Draw(Kind.INTERRUPT, what))
            if isinstance(part, ast.Call):
                found += self._call(part)
                for name in self._own(part) - seen:
                    body = self.functions[name]
                    inside = body.body if isinstance(body, ast.Module | _FUNCTIONS | ast.Lambda) else [body]
                    bodies: list[ast.AST] = list(inside) if isinstance(inside, list) else [inside]
                    if isinstance(body, ast.Module):
                        bodies = [line for method in bodies if isinstance(method, _FUNCTIONS) for line in method.body]
                    found += self._draws(bodies, seen | {name})
        seen_order = order_seen(nodes, self.sets | self.kernel_sets if self.kernel_sets else self.sets)
        if seen_order.place:
            found.append(Draw(Kind.HASH, seen_order.place))
        return found

    def _own(self, call: ast.Call) -> set[str]:
        """Return the notebook's own functions that a call runs or receives: `df.apply(draw)`."""
        names = {arg.id for arg in call.args if isinstance(arg, ast.Name)}
        if isinstance(call.func, ast.Name):
            names.add(call.func.id)
        elif isinstance(call.func, ast.Attribute):
            names.add(f".{call.func.attr}")
        return names & self.functions.keys()

    def _call(self, call: ast.Call) -> Iterator[Draw]:
        name = _dotted(call.func, self.names)
        what = ast.unparse(call.func)
        library = self._library(call, name)
        if library:
            yield Draw(Kind.STREAM, what, library)
        elif self._is_of_generator(call):
            yield Draw(Kind.GENERATOR, what)
        elif name in _CLOCKS or len(call.args) == _OF_NOW.get(name, -1):
            yield Draw(Kind.CLOCK, what)
        elif name in _UNIQUE or name.startswith("secrets."):
            yield Draw(Kind.UNIQUE, what)
        elif self._reads_network(call, name):
            yield Draw(Kind.NETWORK, what)
        elif remote_reads.reads_database(name):
            yield Draw(Kind.DATABASE, what)
        elif isinstance(call.func, ast.Name) and call.func.id == "hash" and "hash" not in self.functions:
            yield Draw(Kind.HASH, "hash()")

    def _reads_network(self, call: ast.Call, name: str) -> bool:
        if remote_reads.reads_network(name):
            return True
        if isinstance(call.func, ast.Attribute) and remote_reads.is_of_client(call.func.attr):
            receiver = call.func.value
            if (isinstance(receiver, ast.Name) and receiver.id in self.clients) or self._is_client(receiver):
                return True
        return remote_reads.reads_address(call, self._facts(), is_near_address=self.is_near_address)

    def _is_client(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Call) and _dotted(value.func, self.names) in remote_reads.CLIENTS

    def _library(self, call: ast.Call, name: str) -> str:
        """Return the global stream from which a call draws; "" for none."""
        root, _, verb = name.rpartition(".")
        attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        match root:
            case "random" if verb in _PYTHON:
                return "random"
            case "numpy.random" if verb not in _NO_DRAWS and name not in _CONSTRUCTORS:
                return "numpy.random"
            case "torch" if verb in _TORCH and not _has(call, "generator"):
                return "torch"
            case "tensorflow.random" if verb in _TENSORFLOW and not _has(call, "seed"):
                return "tensorflow"
            case "keras.random" | "tensorflow.keras.random" if verb in _KERAS and not _has(call, "seed"):
                return "keras"
            case "sklearn.utils" if verb in {"shuffle", "resample"} and not _has(call, "random_state"):
                return "numpy.random"
            case "sklearn.datasets" if verb.startswith("make_") and not _has(call, "random_state"):
                return "numpy.random"
        if verb == "random_split" and not _has(call, "generator"):
            return "torch"
        if (verb or attribute) == "train_test_split":
            return "" if _has(call, "random_state", "seed") or _is_false(call, "shuffle") else "numpy.random"
        return "" if name else self._library_of_method(call, attribute)

    def _library_of_method(self, call: ast.Call, verb: str) -> str:
        kind = self._type_of(call)
        if verb == "sample" and not _has(call, "random_state"):
            if kind.startswith("torch.distributions"):
                return "torch"
            is_frame = kind.startswith("pandas") or any(option.arg in {"frac", "n"} for option in call.keywords)
            return "numpy.random" if is_frame else ""
        if verb == "shuffle" and kind.startswith("datasets.") and not call.args and not _has(call, "seed", "generator"):
            return "numpy.random"
        if verb == "rvs" and not _has(call, "random_state"):
            return "numpy.random"
        if verb == "split" and isinstance(call.func, ast.Attribute):
            receiver = call.func.value
            is_splitter = isinstance(receiver, ast.Name) and receiver.id in self.splitters
            return "numpy.random" if is_splitter or self._is_unseeded_splitter(receiver) else ""
        if verb in _TORCH_IN_PLACE and not _has(call, "generator"):
            attributes = {part.attr for part in ast.walk(call.func) if isinstance(part, ast.Attribute)}
            return "" if attributes & {"weight", "bias"} else "torch"
        return ""

    def _type_of(self, call: ast.Call) -> str:
        """Return the type of a method's object, if it is a variable or created by a library's function."""
        if not isinstance(call.func, ast.Attribute):
            return ""
        receiver = call.func.value
        if isinstance(receiver, ast.Call) and (made := _dotted(receiver.func, self.names)):
            return made
        fact = self.facts.names.get(root_name(receiver) or "") if self.facts is not None else None
        return fact.type_name if fact is not None else ""

    def _is_of_generator(self, call: ast.Call) -> bool:
        if isinstance(call.func, ast.Attribute) and call.func.attr not in _QUIET_OF_GENERATORS:
            receiver = call.func.value
            if isinstance(receiver, ast.Name) and receiver.id in self.generators:
                return True
            if self._is_unseeded_generator(receiver):
                return True
        given = [*call.args, *(option.value for option in call.keywords)]
        return any(isinstance(arg, ast.Name) and arg.id in self.generators for arg in given)

    def _is_unseeded_generator(self, value: ast.expr) -> bool:
        if not isinstance(value, ast.Call) or _dotted(value.func, self.names) not in _CONSTRUCTORS:
            return False
        given = [*value.args, *(option.value for option in value.keywords)]
        return all(isinstance(arg, ast.Constant) and arg.value is None for arg in given)

    def _is_unseeded_splitter(self, value: ast.expr) -> bool:
        """Return whether a splitter draws at each `split`, as `KFold(5, shuffle=True)` does."""
        if not isinstance(value, ast.Call) or _has(value, "random_state"):
            return False
        root, _, verb = _dotted(value.func, self.names).rpartition(".")
        if root != "sklearn.model_selection":
            return False
        is_shuffled = _has(value, "shuffle") and not _is_false(value, "shuffle")
        return verb in _SPLITTERS or (verb.endswith("KFold") and is_shuffled)


def ends_early(step: Step) -> bool:
    """Return whether a training may have ended by an interrupt: its cell continued, as after `trainer.fit(net)`."""
    return step.statement.is_interrupted and bool(step.trains or step.fits)


def ends_by_interrupt(node: ast.AST, *, was_interrupted: bool = False) -> str:
    """Return by what a statement catches the interruption of a loop, which then ends; "" if it does not.

    A bare `except:` counts only if its cell `was_interrupted`, or around a loop that ends in no other way: it is mostly
    meant for errors.
    """
    caught = (*_BASES, _BARE) if was_interrupted else _BASES
    for part in walk(node):
        if isinstance(part, _TRIES | ast.With) and (what := _catches_interrupt(part)):
            loops = [one for line in part.body for one in walk(line) if isinstance(one, _LOOPS)]
            if loops and (what != _BARE or was_interrupted or any(map(_is_endless, loops))):
                return what
        if isinstance(part, _LOOPS):
            for inner in _of_loop(part.body):
                if isinstance(inner, _TRIES) and (what := _catches_interrupt(inner)) in caught:
                    handlers = [line for one in inner.handlers for line in one.body]
                    if any(isinstance(one, ast.Break | ast.Return) for one in _of_loop(handlers)):
                        return what
    return ""


def _catches_interrupt(part: ast.AST) -> str:
    """Return by what a `try` or `with` statement catches an interruption; "" if it lets it pass."""
    if isinstance(part, ast.With):
        contexts = [one.context_expr for one in part.items]
        caught = [one for one in contexts if isinstance(one, ast.Call) and verb_of(one.func) == "suppress"]
        return next((base for one in caught if (base := _base_in(one))), "")
    if not isinstance(part, _TRIES):
        return ""
    for one in _of_loop(part.finalbody):
        if isinstance(one, ast.Break | ast.Continue | ast.Return):
            return f"{_INTERRUPT} by `{type(one).__name__.lower()}` in `finally:`"
    for handler in part.handlers:
        if what := _BARE if handler.type is None else _base_in(handler.type):
            return "" if isinstance(handler.body[-1], ast.Raise) else what
    return ""


def _base_in(node: ast.AST) -> str:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return next((base for base in _BASES if base in names), "")


def _is_endless(loop: ast.AST) -> bool:
    """Return whether a loop ends only by an exception: `while True:` without `break`, `return` and `next()`."""
    if not (isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and loop.test.value):
        return False
    inside = [one for line in loop.body for one in walk(line)]
    calls = [one for one in inside if isinstance(one, ast.Call)]
    takes = any(verb_of(one.func) in _TAKING for one in calls)
    return (
        not takes
        and not any(isinstance(one, ast.Return) for one in inside)
        and not any(isinstance(one, ast.Break | ast.Raise) for one in _of_loop(loop.body))
    )


def _of_loop(lines: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of statements without those of inner loops and functions."""
    todo: list[ast.AST] = [*lines]
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, _LOOPS | _FUNCTIONS | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(node)


def _running(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes that run immediately, and lambdas passed to them."""
    todo = list(nodes)[::-1]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, _FUNCTIONS | ast.ClassDef):
            continue
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            continue
        if type(node) not in LEAVES:
            todo += children(node)


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *parts[::-1]])


def _has(call: ast.Call, *options: str) -> bool:
    """Return whether the call has one of these options with a value other than None."""
    return any(
        option.arg in options and not (isinstance(option.value, ast.Constant) and option.value.value is None)
        for option in call.keywords
    )


def _is_false(call: ast.Call, option: str) -> bool:
    return any(
        keyword.arg == option and isinstance(keyword.value, ast.Constant) and not keyword.value.value
        for keyword in call.keywords
    )
