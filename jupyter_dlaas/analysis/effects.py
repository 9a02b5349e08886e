"""Effects of a statement besides binding names, and which objects hold which. Pure.

Python does not show whether a call changes its arguments. These heuristics come from notebooks: a call whose value is
dropped changes its receiver and its arguments, unless it is known only to show or compute; the notebook's own functions
are analysed. A wrong guess keeps an unnecessary statement, which costs only time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from jupyter_dlaas.analysis.syntax.names import LEAVES, bound_names, children, root_name, walk


def words(text: str) -> frozenset[str]:
    """Return the set of words in a text."""
    return frozenset(text.split())


SHOW_ROOTS = words(
    "print display plt sns pprint help len type repr px fig ax axes axs HTML Image Markdown dir vars id isinstance"
)
SHOW_VERBS = (
    "show",
    "plot",
    "display",
    "visual",
    "print",
    "summary",
    "describe",
    "info",
    "imshow",
    "draw",
    "savefig",
    "assert_",
)
PURE_VERBS = words(
    """
    mean sum std var min max any all count unique nunique value_counts head tail sample isnull isna notnull corr
    mode item items keys values get numpy size dim numel shape argmax argmin softmax round abs parameters
    named_parameters named_modules state_dict children modules groupby merge query astype dropna fillna tolist
    startswith endswith format join split strip lower upper predict predict_proba transform score evaluate forward
    isin equal allclose memory_usage get_params get_weights cpu_count is_available device_count get_device_name
    cuda_version exists listdir
    """
)
SAVES = words(
    """
    save dump to_csv to_parquet to_json to_pickle to_excel to_hdf to_feather savez savez_compressed savetxt savefig
    log_metric imwrite write_image save_pretrained save_weights save_model save_checkpoint add_scalar add_image
    add_graph
    """
)
DRAWING_VERBS = words(
    """
    bar barh barplot boxplot countplot contour contourf errorbar fill_between heatmap hexbin hist hist2d histplot
    kdeplot lineplot pairplot pie regplot scatterplot violinplot axhline axvline colorbar legend
    set_axis_off set_title set_xlabel set_ylabel set_xlim set_ylim set_xticks set_yticks set_xticklabels
    set_yticklabels suptitle tick_params tight_layout
    """
)
"""Methods of plots, pandas and seaborn that draw their arguments and leave them unchanged."""
PURE_ENDS = ("_score", "_matrix", "_report", "_error")
CHANGING_VERBS = words(
    """
    append extend insert add update setdefault pop popitem remove discard clear sort reverse popleft appendleft
    load_state_dict load_weights set_weights setattr partial_fit fit fit_transform fit_predict fit_resample shuffle
    register_buffer register_forward_hook
    add_module set_params compile apply requires_grad_ tie_weights resize_token_embeddings add_special_tokens
    execute executemany executescript
    """
)
SETS_VALUE = words("set reset")
"""Methods that change their object even if their value is used: `token = scale.set(2)`, `state = env.reset()`."""
COPIES = words(
    "load_state_dict load_weights set_weights copy_ add_ sub_ mul_ div_ lerp_ addcmul_ addcdiv_ fill_ masked_fill_"
)
"""Methods that take values from their arguments and keep no reference to them."""
TAKES = words("setdefault pop popitem popleft")  # they change a collection even if their value is used
WRITES_FIRST = words(
    """
    heapify heappush heappop heappushpop heapreplace insort insort_left insort_right setitem delitem iadd iconcat
    """
)
"""Functions that change their first argument."""
IN_PLACE = re.compile(r"[^_]\w*_|sort|reverse|shuffle")
"""Methods that write into their object, or into their first argument: `init.zeros_(w)`, `rng.shuffle(x)`."""
NOT_IN_PLACE = words("requires_grad_ clip_grad_norm_ clip_grad_value_ share_memory_ retain_grad_")
COLLECTS = TAKES | words("append extend insert add update remove discard clear appendleft")
SEEDS = words(
    """
    manual_seed manual_seed_all seed seed_all set_seed set_random_seed seed_everything enable_full_determinism
    use_deterministic_algorithms set_default_dtype set_default_device set_default_tensor_type set_num_threads
    set_num_interop_threads set_float32_matmul_precision set_sharing_strategy set_start_method enable_op_determinism
    set_global_policy set_floatx set_image_data_format set_visible_devices set_memory_growth set_grad_enabled
    set_detect_anomaly set_per_process_memory_fraction filterwarnings simplefilter setrecursionlimit
    set_session set_jit enable_eager_execution disable_eager_execution disable_v2_behavior enable_v2_behavior
    """
)
SETS = re.compile(
    r"(set|enable|disable|use|init|start|register|install|allow|patch|clear|reset)(_|$)|autolog|login|setup|configure"
)
"""Verbs of a module whose value is not needed: they configure it."""
SEEDING = re.compile(r"(^|_)(re)?seeds?(_|$)|determinis|reproducib", re.IGNORECASE)
"""Other names for seeding: `set_seeds`, `seed_torch`, `make_deterministic`."""
QUIET_MODULES = words(
    """os shutil gc time sys subprocess pathlib glob matplotlib seaborn plotly altair bokeh IPython pprint tqdm
    inspect pdb traceback matplotlib_inline"""
)  # the effects of their calls persist already, or are only pictures
KEEPS_ARGUMENTS = words("append add insert setdefault load_state_dict load_weights set_weights compile")
HANDS_ON = words(
    """
    partial jit pmap vmap compile script trace wraps cache lru_cache on attach append register hook grad
    value_and_grad checkpoint signature getsource help print display type callable
    """
)  # calls that receive a function and do not run it
RUNS = re.compile(r"(run|fit|train|step|start|learn|optimi[sz]e|execute|launch|main|solve|search|map|submit)")
FITS = words("fit fit_one_cycle fit_generator fine_tune partial_fit learn train train_model")
STEPS = words("backward train_on_batch apply_gradients apply_updates minimize manual_backward training_step")
VIEWS = words(
    """
    parameters named_parameters modules named_modules children named_children values items keys view detach numpy
    state_dict to cuda cpu float half double train eval reshape squeeze get_submodule get_parameter requires_grad_
    share_memory transpose permute flatten get setdefault layers narrow diagonal expand cursor
    """
)
HOLDING = words(
    """
    list tuple dict set zip enumerate map filter reversed sorted chain partial getattr asarray as_tensor from_numpy
    compile jit
    """
)
SHARING = words(
    """
    reshape ravel squeeze transpose swapaxes moveaxis broadcast_to atleast_1d atleast_2d atleast_3d frombuffer
    unsqueeze chunk tensor_split array_split hsplit vsplit unbind
    """
)
"""Functions whose value is a view of their arguments."""
MEASURES = words("len int float bool str abs round repr hash isinstance")
"""Functions whose value holds no argument."""
WRAPS = words("prepare prepare_model prepare_optimizer setup setup_module setup_optimizers initialize")
"""Methods that return their arguments, wrapped: `model, opt = accelerator.prepare(model, opt)`."""
GIVEN_IN_JOBS = words("display exit get_ipython quit")  # provided by the job's runner
PROVIDED = GIVEN_IN_JOBS | {"dlaas"}  # no call changes them, unless the user has bound such a name
NESTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
BLOCKS = ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.If | ast.Try | ast.TryStar | ast.Match


@dataclass(frozen=True, slots=True)
class Call:
    """Call that runs immediately."""

    function: str | None  # `f` of `f(x)`; None for methods
    receiver: str | None  # `a` of `a.b.c(x)`
    verb: str  # `f`, `c`
    arguments: tuple[tuple[int | str, frozenset[str]], ...]  # position or keyword -> variables passed
    is_dropped: bool  # its value is not used
    is_called: bool  # its value is called immediately: `register("net")(Net)`, also as a decorator
    line: int
    has_number: bool = False  # a positional argument is a number above 1
    is_direct: bool = False  # `a.c(x)`, not `a.b.c(x)`
    maker: str = ""  # `B` of `a.B(x).c(y)`
    made_with: frozenset[str] = frozenset()  # the objects that this value holds: `x`

    @property
    def args(self) -> frozenset[str]:
        """Return all variables whose objects are passed."""
        return frozenset().union(*(names for _, names in self.arguments))

    @property
    def saves(self) -> bool:
        """Return whether the call writes a file and leaves its objects unchanged."""
        return self.verb in SAVES

    @property
    def only_shows(self) -> bool:
        """Return whether the call prints, draws or computes, without changing any object."""
        verb = self.verb.lower().lstrip("_")
        root = self.function or self.receiver
        if self.saves:
            return True
        if self.has_option("inplace"):
            return False
        if root in SHOW_ROOTS or verb.startswith(SHOW_VERBS) or verb.endswith(PURE_ENDS):
            return True
        return verb in PURE_VERBS or verb in DRAWING_VERBS

    @property
    def is_in_place(self) -> bool:
        """Return whether the call changes its receiver even if its value is used: `items.pop()`, `t.add_(1)`."""
        if self.verb in CHANGING_VERBS or self.has_option("inplace") or (self.is_direct and self.verb in SETS_VALUE):
            return True
        return self.verb.endswith("_") and not self.verb.startswith("_")

    @property
    def written(self) -> frozenset[str]:
        """Return the objects that the call certainly writes to: `out=x`, `next(numbers)`."""
        is_first = self.function == "next" or self.verb in WRITES_FIRST
        is_table = self.verb == "to_sql"
        keys = {"out"} | ({0} if is_first else set()) | ({1, "con"} if is_table else set())
        found = [names for key, names in self.arguments if key in keys]
        return frozenset().union(*found)

    @property
    def stores(self) -> bool:
        """Return whether the receiver may hold the arguments afterwards: `parts.append(part)`."""
        if self.receiver is None or self.only_shows or self.verb in FITS | COPIES or not self.args:
            return False
        return self.is_dropped or self.is_in_place

    def has_option(self, name: str) -> bool:
        """Return whether the call has this keyword."""
        return any(key == name for key, _ in self.arguments)


@dataclass(frozen=True, slots=True)
class Hold:
    """Relation after which the objects of `targets` are, hold or derive from those of `objects`."""

    targets: frozenset[str]
    objects: frozenset[str]
    makers: frozenset[str]  # classes and functions called to create it
    is_sure: bool  # a plain assignment: it replaces what the targets held


@dataclass(frozen=True, slots=True)
class Effects:
    touches: frozenset[str]  # `x[0] = 1`, `x.a = 1`, `del x[0]`
    calls: tuple[Call, ...]
    holds: tuple[Hold, ...]
    entered: frozenset[str]  # names in the header of a `with`
    passed: frozenset[str]  # names that a loop or comprehension iterates over
    values: frozenset[str]  # names that are used as objects, not only called
    indexed: frozenset[str] = frozenset()  # `x[0]` is read
    combined: frozenset[str] = frozenset()  # operands of an operator whose value is not used: `pipe | step`
    written: frozenset[str] = frozenset()  # `x.add_(1)`, `rng.shuffle(x)`
    parts: tuple[tuple[frozenset[str], frozenset[str]], ...] = ()  # variables of a loop, what it iterates over

    @property
    def altered(self) -> frozenset[str]:
        """Return objects that certainly change: an item is assigned, or added to a collection; also in a loop."""
        collects = [call for call in self.calls if call.verb in COLLECTS and (call.is_dropped or call.verb in TAKES)]
        written = self.written.union(*(call.written for call in self.calls))
        return self.sources(self.touches | written | {call.receiver for call in collects if call.receiver})

    def sources(self, names: frozenset[str]) -> frozenset[str]:
        """Return the names, and for variables of a loop what it iterates over: changing a part changes the whole."""
        sources = {variable: source for variables, source in self.parts for variable in variables}
        return reach(names, sources) if sources else names


def walk_now(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes that run immediately, without function bodies."""
    todo = list(nodes)[::-1]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, NESTED):
            outside: list[ast.AST] = [d for d in [*node.args.defaults, *node.args.kw_defaults] if d is not None]
            if not isinstance(node, ast.Lambda):
                outside += node.decorator_list
            todo += outside[::-1]
        elif type(node) not in LEAVES:
            todo += children(node)


def effects_of(nodes: Iterable[ast.AST]) -> Effects:
    """Return the changes and holds of these statements."""
    nodes = list(nodes)
    top = {id(n) for n in nodes}
    touches: set[str] = set()
    calls: list[Call] = []
    holds: list[Hold] = []
    entered: set[str] = set()
    passed: set[str] = set()
    values: set[str] = set()
    indexed: set[str] = set()
    combined: set[str] = set()
    written: set[str] = set()
    parts: list[tuple[frozenset[str], frozenset[str]]] = []
    functions: set[int] = set()
    dropped: set[int] = set()
    called: set[int] = set()
    for node in walk_now(nodes):
        match node:
            case ast.Expr(value=ast.Call() as call) | ast.Expr(value=ast.Await(value=ast.Call() as call)):
                dropped.add(id(call))
            case ast.Expr(value=ast.BoolOp(values=[*_, last])):
                dropped.add(id(last))  # `ready and start()`
            case ast.Expr(value=ast.IfExp(body=body, orelse=orelse)):
                dropped |= {id(body), id(orelse)}
            case ast.Expr(value=ast.BinOp(op=ast.LShift() | ast.RShift(), left=left, right=right)):
                touches |= objects_in(left) | objects_in(right)  # `first >> second` connects them
            case ast.Expr(value=ast.BinOp() as operation):
                combined |= {n.id for n in walk(operation) if isinstance(n, ast.Name)}
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Load()):
                indexed.add(name)
            case ast.Name(id=name, ctx=ast.Load()) if id(node) not in functions:
                values.add(name)
            case ast.Call():
                functions.add(id(node.func))
                if isinstance(node.func, ast.Call):
                    called.add(id(node.func))
                one = call_of(node, is_dropped=id(node) in dropped, is_called=id(node) in called)
                calls.append(one)
                written |= _written_by(node)
                if one.stores:
                    holds.append(Hold(frozenset({one.receiver or ""}), one.args, frozenset(), False))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    touches |= _changed_parts(target)
                holds.append(_hold(targets, value, is_sure=id(node) in top))
                holds += _same(targets)
                if all(isinstance(t, ast.Name) and t.id.startswith("_") for t in targets):
                    dropped.add(id(value))  # `_ = model.apply(init)`
                touches_into = [t for t in targets if isinstance(t, ast.Attribute | ast.Subscript)]
                holds += [_stored(t, value) for t in touches_into]  # `model.fc = head`
            case ast.AnnAssign(target=target, value=value) if value is not None:
                touches |= _changed_parts(target)
                holds.append(_hold([target], value, is_sure=id(node) in top))
            case ast.AugAssign(target=target, value=value):
                touches |= _changed_parts(target) | bound_names(target)
                holds.append(_hold([target], value, is_sure=False))
            case ast.NamedExpr(target=target, value=value):
                holds.append(_hold([target], value, is_sure=False))
            case ast.Delete(targets=targets):
                for target in targets:
                    touches |= _changed_parts(target)
            case ast.For(target=target, iter=source) | ast.AsyncFor(target=target, iter=source):
                touches |= _changed_parts(target)
                objects = frozenset(n.id for n in walk(source) if isinstance(n, ast.Name))
                passed |= objects_in(source)
                parts.append((bound_names(target), frozenset(objects_in(source) - SHOW_ROOTS - HOLDING)))
                holds.append(Hold(bound_names(target), objects - SHOW_ROOTS - HOLDING, frozenset(), False))
            case ast.comprehension(target=target, iter=source):
                touches |= _changed_parts(target)
                passed |= objects_in(source)
            case ast.withitem(context_expr=value, optional_vars=target):
                if target is not None:
                    touches |= _changed_parts(target)
                    holds.append(_hold([target], value, is_sure=False))
                entered |= {n.id for n in walk(value) if isinstance(n, ast.Name)}
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if id(node) in top:
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call):
                        dropped.add(id(decorator))
                        called.add(id(decorator))
                    else:
                        calls.append(_decoration(decorator, node.name))
            case _:
                continue
    return Effects(
        frozenset(touches),
        tuple(calls),
        tuple(holds),
        frozenset(entered),
        frozenset(passed),
        frozenset(values),
        frozenset(indexed),
        frozenset(combined),
        frozenset(written),
        tuple(parts),
    )


def reach(start: Iterable[str], held: Mapping[str, Set[str]]) -> frozenset[str]:
    """Return the names and everything that their objects hold."""
    found = set(start)
    todo = list(found)
    done: set[int] = set()  # many names share one set, which may be large: visit each once
    while todo:
        more = held.get(todo.pop())
        if more and id(more) not in done:
            done.add(id(more))
            new = more - found
            found |= new
            todo += new
    return frozenset(found)


def joined(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    """Return the union: one of the sets itself if it contains all others, so that names share sets."""
    largest: frozenset[str] = frozenset()
    for one in sets:
        if not one <= largest:
            largest = one if largest <= one else largest | one
    return largest


def is_step(call: Call) -> bool:
    """Return whether only a training makes this call: a gradient, or a step of an optimiser."""
    if call.verb == "step" and call.receiver:
        return any(part in call.receiver.lower() for part in ("opt", "trainer", "scaler", "accelerator"))
    return call.verb in STEPS


def is_seed(verb: str) -> bool:
    """Return whether a call of this name, whose value is not used, seeds random streams."""
    return verb in SEEDS or (SEEDING.search(verb) is not None and not verb.startswith(("get", *SHOW_VERBS)))


def changes_directory(node: ast.AST) -> bool:
    """Return whether a node contains a call that changes the directory: `os.chdir(path)`."""
    return any(isinstance(part, ast.Call) and verb_of(part.func) == "chdir" for part in walk(node))


def loaded_modules(node: ast.stmt) -> frozenset[str]:
    """Return the submodules that an import loads in addition to its bindings, as "package.module"."""
    if isinstance(node, ast.ImportFrom) and not node.level:
        names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module else []
    else:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    return frozenset(".".join(name.split(".")[:2]) for name in names if "." in name)


def dotted_names(node: ast.AST) -> frozenset[str]:
    """Return the first two parts of each `a.b.c`, including function bodies."""
    pairs = [n for n in walk(node) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    return frozenset(f"{n.value.id}.{n.attr}" for n in pairs if isinstance(n.value, ast.Name))


def verb_of(function: ast.expr) -> str:
    """Return the last name of a called function: `f` of `f(x)`, `c` of `a.b.c(x)`; "" if there is none."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def verb_of_value(value: ast.expr | None) -> str:
    """Return the last name of the function whose call makes a value, or ""."""
    return verb_of(value.func) if isinstance(value, ast.Call) else ""


def _same(targets: list[ast.expr]) -> list[Hold]:
    """Return the holds of `a = b = []`: each name is the other."""
    names = [t.id for t in targets if isinstance(t, ast.Name)]
    return [Hold(frozenset({name}), frozenset({names[0]}), frozenset(), False) for name in names[1:]]


def _decoration(decorator: ast.expr, name: str) -> Call:
    """Return the call of a decorator: `@register` calls `register` with the function; `@app.route` changes `app`."""
    function = decorator.id if isinstance(decorator, ast.Name) else None
    return Call(
        function=function,
        receiver=None if function else root_name(decorator),
        verb=verb_of(decorator),
        arguments=((0, frozenset({name})),) if function else (),
        is_dropped=function is None,
        is_called=False,
        line=decorator.lineno,
    )


def call_of(node: ast.Call, *, is_dropped: bool, is_called: bool) -> Call:
    is_spread = any(isinstance(arg, ast.Starred) for arg in node.args)
    arguments: list[tuple[int | str, frozenset[str]]] = []
    for position, arg in enumerate(node.args):
        arguments.append((-1 if is_spread else position, frozenset(objects_in(arg))))
    for keyword in node.keywords:
        arguments.append((keyword.arg or -1, frozenset(objects_in(keyword.value))))
    maker = _maker_of(node.func)
    return Call(
        function=node.func.id if isinstance(node.func, ast.Name) else None,
        receiver=root_name(node.func) if not isinstance(node.func, ast.Name) else None,
        verb=verb_of(node.func),
        arguments=tuple(arguments),
        is_dropped=is_dropped,
        is_called=is_called,
        line=node.lineno,
        has_number=any(_is_number(arg) for arg in node.args),
        is_direct=isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name),
        maker="" if maker is None else verb_of(maker.func),
        made_with=frozenset() if maker is None else _hold([], maker, is_sure=False).objects,
    )


def _maker_of(function: ast.expr) -> ast.Call | None:
    """Return the call whose value has this method: `lightning.Trainer(…)` of `lightning.Trainer(…).fit`."""
    match function:
        case ast.Attribute(value=ast.Call() as maker):
            return maker
        case _:
            return None


def _is_number(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value > 1  # True and 1 set a mode
        case ast.BinOp(left=left, right=right):
            return _is_number(left) or _is_number(right)
        case _:
            return False


def objects_in(node: ast.AST) -> set[str]:
    """Return the variables whose objects an expression passes on, rather than copies or computes with."""
    match node:
        case ast.Name(id=name):
            return {name}
        case (
            ast.Starred(value=inner) | ast.Await(value=inner) | ast.Subscript(value=inner) | ast.NamedExpr(value=inner)
        ):
            return objects_in(inner)
        case ast.Attribute(value=inner):
            return objects_in(inner)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return {name for part in parts for name in objects_in(part)}
        case ast.Dict(values=parts):
            return {name for part in parts for name in objects_in(part)}
        case ast.IfExp(body=one, orelse=other):
            return objects_in(one) | objects_in(other)
        case (
            ast.ListComp(elt=elt, generators=generators)
            | ast.GeneratorExp(elt=elt, generators=generators)
            | ast.DictComp(value=elt, generators=generators)
        ):
            own = {name for g in generators for name in bound_names(g.target)}
            sources = {name for g in generators for name in objects_in(g.iter)}
            return (objects_in(elt) - own) | sources
        case ast.Call(func=ast.Attribute(value=inner, attr=verb), args=args) if verb in VIEWS | HOLDING | SHARING:
            found = objects_in(inner)
            return found if verb in VIEWS - SHARING else found.union(*map(objects_in, args))
        case ast.Call(func=ast.Name(id=verb), args=args) if verb in HOLDING | SHARING:
            return {name for arg in args for name in objects_in(arg)}
        case ast.Call(func=maker, args=[ast.Call(func=ast.Attribute(attr="parameters")) as parameters, *_]) if verb_of(
            maker
        )[:1].isupper():
            return objects_in(parameters)  # an optimiser: `Adam(net.parameters())`
        case _:
            return set()


def _written_by(node: ast.Call) -> set[str]:
    """Return the objects that a call writes to, judged by its method's name. A gradient is not part of its tensor."""
    function = node.func
    if not isinstance(function, ast.Attribute) or not IN_PLACE.fullmatch(function.attr):
        return set()
    if function.attr in NOT_IN_PLACE or any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in walk(function)):
        return set()
    takes_object = function.attr == "shuffle" or verb_of(function.value) == "init"
    return objects_in(function.value).union(*(objects_in(one) for one in node.args[:1] if takes_object))


def _constructors(value: ast.expr) -> tuple[set[str], set[str]]:
    """Return the callables that create a value, and the objects passed to a class or an own function."""
    makers: set[str] = set()
    given: set[str] = set()
    for node in walk_now([value]):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            makers.add(node.func.id)
        verb = verb_of(node.func)
        if isinstance(node.func, ast.Name) and verb in MEASURES:
            continue
        if verb[:1].isupper() or isinstance(node.func, ast.Name):
            for arg in [*node.args, *(k.value for k in node.keywords)]:
                given |= objects_in(arg)
    return makers, given


def _hold(targets: list[ast.expr], value: ast.expr, *, is_sure: bool) -> Hold:
    names = frozenset(name for target in targets for name in bound_names(target))
    makers, given = _constructors(value)
    objects = _of_comprehensions(value, objects_in(value) | given)
    if isinstance(value, ast.Call) and verb_of(value.func) in WRAPS:
        objects |= {name for arg in value.args for name in objects_in(arg)}
    return Hold(names, frozenset(objects) - SHOW_ROOTS - HOLDING, frozenset(makers), is_sure)


def _of_comprehensions(value: ast.expr, objects: set[str]) -> set[str]:
    """Replace the variables of comprehensions by the objects that they iterate over: `[Adam(m) for m in models]`."""
    for part in walk_now([value]):
        if isinstance(part, ast.comprehension) and objects & (own := bound_names(part.target)):
            objects = (objects - own) | objects_in(part.iter)
    return objects


def _stored(target: ast.expr, value: ast.expr) -> Hold:
    root = root_name(target)
    return Hold(frozenset({root} if root else ()), _hold([], value, is_sure=False).objects, frozenset(), False)


def _changed_parts(target: ast.AST) -> set[str]:
    match target:
        case ast.Attribute() | ast.Subscript():
            root = root_name(target)
            return {root} if root else set()
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return {name for part in parts for name in _changed_parts(part)}
        case ast.Starred(value=inner):
            return _changed_parts(inner)
        case _:
            return set()
