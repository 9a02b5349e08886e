"""Statements that configure the process or a library for all later code, whether or not it is named again. Pure.

Seeds, paths, environment, default types, error modes, patched functions: a job without them computes other numbers.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from typing import Final

from jupyter_dlaas.analysis.effects import (
    BLOCKS,
    COLLECTS,
    QUIET_MODULES,
    SEEDS,
    Call,
    call_of,
    is_seed,
    verb_of,
    verb_of_value,
    walk_now,
    words,
)
from jupyter_dlaas.analysis.syntax.names import root_name

__all__ = ["LibraryState", "is_setup", "may_register"]

_SETS_LIBRARY: Final = re.compile(
    r"(set|enable|disable|use|allow|register|install|patch|setup|configure)(_|$)(?!print|option)"
)
"""Functions of a library that change it for all later code."""
_SETUP_STARTS: Final = (
    "sys.path.",
    "sys.path[",
    "sys.modules.",
    "sys.modules[",
    "sys.argv",
    "os.chdir(",
    "__import__(",
    "os.environ",
    "os.putenv(",
    "torch.backends.",
    "jax.config.",
    "tf.config.",
    "logging.basicConfig(",
)
_SETUP_ROOTS: Final = words("sys os torch jax tf logging __import__")
_PICTURES: Final = words("plt mpl matplotlib sns pd pandas rcParams alt px pio")
_PROCESS_WIDE: Final = words(
    """
    numpy.seterr numpy.seterrcall numpy.setbufsize numpy.set_printoptions scipy.special.seterr locale.setlocale
    gc.disable gc.enable gc.set_threshold gc.freeze sys.setswitchinterval sys.set_int_max_str_digits time.tzset os.umask
    csv.field_size_limit copyreg.pickle copyreg.constructor signal.signal signal.setitimer joblib.parallel_config
    joblib.register_parallel_backend logging.config.dictConfig logging.config.fileConfig logging.disable
    socket.setdefaulttimeout decimal.setcontext mimetypes.add_type codecs.register_error
    multiprocessing.set_start_method
    """
)
"""Functions that change the state of the process. Called without arguments, most of them only return it."""
_WITHOUT_ARGUMENTS: Final = words("gc.disable gc.enable gc.freeze time.tzset")
_HANDLES: Final = words(
    """
    getLogger getcontext patch MonkeyPatch no_grad enable_grad inference_mode set_grad_enabled autocast errstate
    localcontext catch_warnings option_context default_device parallel_config config_context
    """
)
"""Functions that return a handle of such state: `log = getLogger()`, `p = patch.object(…)`, `guard = no_grad()`."""
_HANDLE_VERBS: Final = words(
    """
    start stop __enter__ __exit__ setLevel addHandler removeHandler addFilter removeFilter setattr setitem setenv
    delattr clear_flags clear_traps
    """
)
_STYLES: Final = words("use rc rcdefaults set_theme set_style set_palette set_context set_option reset_option update")
"""Functions of plotting libraries and pandas that configure them."""
_PLAIN: Final = frozenset(sys.stdlib_module_names) | words(
    """IPython PIL accelerate albumentations altair bokeh bs4 cartopy catboost cv2 cvxpy datasets deap diffusers distrax
    einops evaluate faiss fastai fastcore flax folium gensim geopandas google gym gymnasium h5py haiku holoviews
    huggingface_hub hydra imageio imblearn imgaug ipywidgets jax jaxlib joblib jupyter_dlaas kagglehub keras
    keras_tuner kornia langchain librosa lightgbm lightning lime lxml matplotlib matplotlib_inline missingno mlflow
    mpl_toolkits mplfinance networkx nltk numba numpy numpyro omegaconf onnx onnxruntime openai openpyxl optax optuna
    pandas pandas_profiling peft pickle5 plotly plotnine polars prettytable prophet psutil pyarrow pydantic pydot
    pylab pymc pyro pytorch_lightning rdkit requests rich ruamel sacrebleu safetensors scipy seaborn
    sentence_transformers sentencepiece setuptools shap six skimage sklearn skorch soundfile spacy sqlalchemy
    statsmodels streamlit sympy tabulate tensorboard tensorboardX tensorflow tensorflow_datasets tensorflow_hub
    textblob tiktoken timm tokenizers torch torch_geometric torchaudio torchdata torchinfo torchmetrics torchsummary
    torchtext torchvision torchviz tqdm transformers trl umap unidecode urllib3 wandb wordcloud xgboost yaml
    yellowbrick yfinance"""
)
"""Packages whose modules are imported for their names."""
_SWITCHES: Final = ("enable_", "disable_")


class LibraryState:
    """Configuring statements, from the imports of the notebook so far."""

    def __init__(self, modules: set[str], module_roots: Mapping[str, str]) -> None:
        """`modules` and `module_roots` are the tracer's, and grow with it."""
        self.modules, self.module_roots = modules, module_roots
        self.imported: dict[str, str] = {}  # `np` -> "numpy", `seterr` -> "numpy.seterr"
        self.handles: set[str] = set()

    def note(self, node: ast.stmt) -> None:
        """Record the imports and handles that a statement binds. Call it after `configures`."""
        match node:
            case ast.Import(names=names):
                for alias in names:
                    root = alias.name.partition(".")[0]
                    self.imported[alias.asname or root] = alias.name if alias.asname else root
            case ast.ImportFrom(module=str(module), names=names, level=0):
                self.imported |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in names}
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                is_handle = isinstance(value, ast.Call) and self._makes_handle(value)
                (self.handles.add if is_handle else self.handles.discard)(name)
                self.imported.pop(name, None)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self.handles.discard(name)
                self.imported.pop(name, None)
            case _:
                return

    def configures(self, node: ast.stmt, calls: tuple[Call, ...]) -> bool:
        """Return whether a statement configures the process or a library for all later code."""
        if is_setup(node) or self._changes_module(node) or self._changes_process(node):
            return True
        if isinstance(node, ast.Expr) and any(map(self._sets_library, calls[:1])):
            return True
        is_set = isinstance(node, ast.Assign) and verb_of_value(node.value).startswith("set_")
        return is_set and any(self._is_of_library(call) for call in calls[:1])

    def configures_inside(self, function: ast.AST) -> bool:
        """Return whether a function of the notebook changes modules when it is called."""
        inside = {"setattr", "delattr"}
        local = {
            alias.asname or alias.name.partition(".")[0]
            for part in walk_now(function.body if isinstance(function, ast.FunctionDef) else [])
            if isinstance(part, ast.Import)
            for alias in part.names
        }
        for part in walk_now(function.body if isinstance(function, ast.FunctionDef) else []):
            if isinstance(part, ast.stmt) and self._changes_process(part):
                return True
            changed = module_attribute(part) if isinstance(part, ast.Assign) else None
            if isinstance(part, ast.Call) and verb_of(part.func) in inside and part.args:
                changed = root_name(part.args[0])
            if changed is not None and (changed in local or changed in self.modules):
                return True
        return False

    def is_style(self, call: Call) -> bool:
        """Return whether a call configures a plotting library or pandas: `plt.rcParams.update(…)`."""
        name = call.receiver or call.function or ""
        is_show = self.module_roots.get(name) in {"matplotlib", "seaborn", "plotly", "altair", "pandas"}
        return is_show and call.is_dropped and call.verb in _STYLES

    def _sets_library(self, call: Call) -> bool:
        is_update = call.verb == "update" and (call.receiver or "").endswith("config")
        return call.is_dropped and self._is_of_library(call) and (is_update or bool(_SETS_LIBRARY.match(call.verb)))

    def _is_of_library(self, call: Call) -> bool:
        name = call.receiver or call.function or ""
        return name in self.modules and self.module_roots.get(name) not in QUIET_MODULES

    def _changes_module(self, node: ast.stmt) -> bool:
        root = module_attribute(node)
        if root is not None:
            return root in self.modules or root in self.imported or root in self.handles
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[changed, *_])):
                root = root_name(changed)
                return root not in _PICTURES and (root in self.modules or root in self.imported)
            case _:
                return False

    def _changes_process(self, node: ast.stmt) -> bool:
        value = node.value if isinstance(node, ast.Expr | ast.Assign) else None
        if not isinstance(value, ast.Call):
            return False
        function = value.func
        name = self._full_name(function)
        if name in _PROCESS_WIDE:
            given = len(value.args) + len(value.keywords)
            return name in _WITHOUT_ARGUMENTS or given > (name == "locale.setlocale")
        if not isinstance(function, ast.Attribute) or function.attr not in _HANDLE_VERBS:
            return False
        owner = function.value
        return (isinstance(owner, ast.Name) and owner.id in self.handles) or (
            isinstance(owner, ast.Call) and self._makes_handle(owner)
        )

    def _makes_handle(self, call: ast.Call) -> bool:
        verb = verb_of(call.func)
        return verb in _HANDLES or (isinstance(call.func, ast.Attribute) and verb_of(call.func.value) == "patch")

    def _full_name(self, function: ast.expr) -> str:
        parts = []
        while isinstance(function, ast.Attribute):
            parts.append(function.attr)
            function = function.value
        if not isinstance(function, ast.Name):
            return ""
        return ".".join([self.imported.get(function.id, function.id), *reversed(parts)])


def is_setup(node: ast.stmt) -> bool:
    """Return whether a statement is setup that libraries depend on without naming it: seeds, paths, environment."""
    if isinstance(node, BLOCKS):
        return _sets_up_only(node)
    if isinstance(node, ast.Delete):  # `del os.environ["A"]`
        return all(ast.unparse(one).startswith(("os.environ[", "sys.modules[", "sys.path[")) for one in node.targets)
    if not isinstance(node, ast.Expr | ast.Assign | ast.AugAssign):
        return False
    value = node.value
    if isinstance(value, ast.Call) and (
        verb_of(value.func) in SEEDS or (isinstance(node, ast.Expr) and is_seed(verb_of(value.func)))
    ):
        return True
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    if root_name(targets[0] if targets else value) not in _SETUP_ROOTS:
        return False
    texts = [ast.unparse(t) for t in targets] or [ast.unparse(value)]
    return any(text.startswith(_SETUP_STARTS) or text == "sys.path" for text in texts)


def _sets_up_only(block: ast.stmt) -> bool:
    """Return whether a block only configures, as `for gpu in gpus: set_memory_growth(gpu, True)`, or prints."""
    found = False
    for node in walk_now([block]):
        if not isinstance(node, ast.stmt) or isinstance(node, BLOCKS | ast.Pass):
            continue
        if is_setup(node):
            found = True
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if not call_of(node.value, is_dropped=True, is_called=False).only_shows:
                return False
        elif not isinstance(node, ast.Assign | ast.Import | ast.ImportFrom):
            return False
    return found


def module_attribute(node: ast.stmt) -> str | None:
    """Return the root of `ssl._create_default_https_context = f` and `nltk.data.path.append(p)`, or None.

    Such a statement is setup for all later code if the root is a module.
    """
    match node:
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(value=ast.Attribute()) as changed]):
            root = root_name(changed)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Attribute() as changed, attr=verb))):
            root = root_name(changed) if verb in COLLECTS else None
        case _:
            return None
    return None if root in _PICTURES else root


def may_register(node: ast.stmt) -> bool:
    """Return whether an import may change other modules, regardless of the name that it binds.

    `import panda_gym` adds environments to gymnasium's table, `from sklearn.experimental import
    enable_iterative_imputer` enables the import of another module. A wrong guess costs the time of an import.
    """
    match node:
        case ast.ImportFrom(module=str(module), names=names, level=0):
            parts = module.split(".")
            is_switch = "experimental" in parts or any(alias.name.startswith(_SWITCHES) for alias in names)
            return names[0].name != "*" and parts[0] != "__future__" and (is_switch or parts[0] not in _PLAIN)
        case ast.Import(names=names):
            return any(alias.name.partition(".")[0] not in _PLAIN for alias in names)
        case _:
            return False
