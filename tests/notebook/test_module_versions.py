"""A class or function of the user's own module that is another version in kernel, file or job is noticed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.extensions.autoreload import ModuleReloader

from jupyter_dlaas.analysis.model import KernelFacts, NameFact, OwnModule
from jupyter_dlaas.kernel.module_versions import is_edited, of_before_reload
from jupyter_dlaas.objects import code_versions
from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.pushed_objects import NotSendable, write_pushed
from tests.notebook.cases import job

TEXT = '''"""Own things."""
import functools
RATE = 0.1
class Base:
    def grow(self):
        return 1
class Net(Base):
    width = 3
    seen = 0
    def __init__(self):
        self.weights = [1.0]
    def forward(self, x):
        return x * RATE
def train(net):
    return net.forward(2)
@functools.lru_cache
def cached():
    return 3
'''
EDITS = {
    "a method": ("x * RATE", "x + RATE"),
    "a base class": ("return 1", "return 2"),
    "a function": ("net.forward(2)", "net.forward(3)"),
    "a decorated function": ("return 3", "return 4"),
    "a constant": ("RATE = 0.1", "RATE = 0.2"),
    "a name": ("def train", "def train_all"),
}
SAME = {"a comment": ("RATE = 0.1", "# how fast\nRATE = 0.1"), "lines": ("class Net", "\n\n\nclass Net")}


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Create an own module that this process has imported."""
    path = tmp_path / "own_helpers.py"
    path.write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("own_helpers")
    sys.modules.pop("own_helpers", None)


def edit(module: types.ModuleType, old: str, new: str) -> Path:
    path = Path(str(module.__file__))
    text = path.read_text().replace(old, new)
    assert text != path.read_text()
    path.write_text(text)
    later_s = time.time() + 2
    os.utime(path, (later_s, later_s))
    importlib.invalidate_caches()
    return path


def compile_elsewhere(path: Path) -> None:
    """Another process imports the file as it is now."""
    subprocess.run([sys.executable, "-m", "py_compile", str(path)], check=True, timeout=60)


@pytest.mark.parametrize("what", EDITS)
def test_a_module_edited_after_its_import_is_noticed(helpers: Any, what: str) -> None:
    assert is_edited(helpers, edit(helpers, *EDITS[what]))


@pytest.mark.parametrize("what", ["a method", "a constant"])
def test_an_edit_that_another_process_has_imported_is_noticed(helpers: Any, what: str) -> None:
    path = edit(helpers, *EDITS[what])
    compile_elsewhere(path)

    assert is_edited(helpers, path)


@pytest.mark.parametrize("what", SAME)
def test_comments_and_lines_are_no_edit(helpers: Any, what: str) -> None:
    assert not is_edited(helpers, Path(helpers.__file__))
    path = edit(helpers, *SAME[what])

    assert not is_edited(helpers, path)
    compile_elsewhere(path)
    assert not is_edited(helpers, path)


def test_objects_with_own_attribute_access_are_not_asked(helpers: Any) -> None:
    class Config(dict[str, float]):
        __getattr__ = dict.__getitem__

    helpers.config = Config(rate=0.1)
    path = Path(helpers.__file__)
    text = path.read_text()
    path.write_text(f"{text}\n")

    assert not is_edited(helpers, path)


def test_a_module_that_was_reloaded_is_not_edited(helpers: Any) -> None:
    path = edit(helpers, *EDITS["a method"])
    importlib.reload(helpers)
    helpers.Net.seen = 5

    assert not is_edited(helpers, path)


def test_a_module_patched_by_autoreload_is_not_edited(helpers: Any) -> None:
    compile_elsewhere(Path(helpers.__file__))
    reloader = ModuleReloader()
    path = edit(helpers, *EDITS["a function"])
    reloader.check(check_all=True)
    assert helpers.train(helpers.Net()) == 3 * helpers.RATE, "autoreload has replaced it"

    assert not is_edited(helpers, path)
    assert is_edited(helpers, edit(helpers, *EDITS["a method"]))


def test_objects_of_before_a_reload_are_named(helpers: Any) -> None:
    net, train, own = helpers.Net(), helpers.train, {"own_helpers": helpers}
    holder = types.SimpleNamespace(parts=[{"net": net}])
    edit(helpers, *EDITS["a method"])
    importlib.reload(helpers)

    assert [of_before_reload(one, own) for one in (net, holder, train, helpers.Net(), 3)] == [
        "own_helpers.Net",
        "own_helpers.Net",
        "",
        "",
        "",
    ]


def test_a_reload_without_an_edit_names_nothing(helpers: Any) -> None:
    net = helpers.Net()
    helpers.Net.seen += 1
    importlib.reload(helpers)

    assert of_before_reload(net, {"own_helpers": helpers}) == ""


def test_object_of_a_reloaded_class_is_a_warning() -> None:
    known = KernelFacts(
        names={
            "net": NameFact(type_name="helpers.Net", of_before_reload="helpers.Net"),
            "x": NameFact(type_name="int"),
        },
        own_modules=(OwnModule("helpers", "helpers.py"),),
    )
    made = job("import helpers\nnet = helpers.Net()\nx = helpers.Net()", train="print(net)", facts=known)

    (warning,) = made.warnings
    assert warning.message == (
        "`net` dates from before `helpers` was reloaded (`helpers.Net`); the job uses the current module. To use it "
        "here, too, run cell [1] again."
    )
    assert job("import helpers\nnet = helpers.Net()", train="print(helpers)", facts=known).warnings == ()


def test_object_from_before_a_reload_is_refused_with_advice(helpers: Any, tmp_path: Path) -> None:
    net = helpers.Net()
    importlib.reload(helpers)

    with pytest.raises(
        NotSendable, match=r"`net` is a `Net` from before `own_helpers` was reloaded. Run net.__class__"
    ):
        write_pushed(tmp_path / "pushed.bin", {"net": net})
    net.__class__ = helpers.Net
    assert write_pushed(tmp_path / "pushed.bin", {"net": net}).names == ("net",)


@pytest.mark.parametrize("what", ["a method", "a base class"])
def test_result_of_another_module_version_is_reported(helpers: Any, what: str) -> None:
    data, table = results.dump([helpers.Net()]), code_versions.table()
    changed: Any = []
    results.load(data, None, changed.extend, lambda: table)
    assert changed == []

    edit(helpers, *EDITS[what])
    importlib.reload(helpers)
    results.load(data, None, changed.extend, lambda: table)

    assert changed == ["own_helpers.Net"]
    results.load(data, None, changed.extend, lambda: table | {"python": "other"})
    assert len(changed) == 1


KINDS = """import enum
class Kind(enum.Enum):
    A = 1
class Net:
    width: int = 3
    seen = 0
    class Settings:
        rate = 0.5
    def forward(self, x, scale=2, *, bias=0):
        return x * scale + bias
"""


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("width: int = 3", "width: int = 4", "Net"),
        ("rate = 0.5", "rate = 0.6", "Net"),
        ("scale=2", "scale=3", "Net"),
        ("bias=0", "bias=1", "Net"),
        ("A = 1", "A = 2", "Kind"),
        ("seen = 0", "seen = 0  # so far", None),
    ],
)
@pytest.mark.parametrize("is_reloaded", [True, False])
def test_a_result_of_a_class_with_other_values_is_named(
    helpers: Any, old: str, new: str, name: str | None, is_reloaded: bool
) -> None:
    Path(helpers.__file__).write_text(KINDS)
    importlib.invalidate_caches()
    os.utime(helpers.__file__, (time.time() + 1,) * 2)
    importlib.reload(helpers)
    data, table = results.dump([helpers.Net(), helpers.Kind]), json.loads(json.dumps(code_versions.table()))
    helpers.Net.seen += 1

    edit(helpers, old, new)
    if is_reloaded:
        importlib.reload(helpers)
        helpers.Net.seen += 1
    named: Any = []
    results.load(data, None, named.extend, lambda: table)

    assert named == ([f"own_helpers.{name}"] if name is not None and is_reloaded else [])


def test_tables_of_earlier_releases_are_read(helpers: Any) -> None:
    table, named = code_versions.table(), list[Any]()
    del table["values"]

    results.load(results.dump(helpers.Net()), None, named.append, lambda: table)
    assert named == []


def test_values_of_a_class_that_change_are_no_other_version(helpers: Any) -> None:
    data, table, changed = results.dump(helpers.Net()), code_versions.table(), list[Any]()
    helpers.Net.seen = 7

    results.load(data, None, changed.append, lambda: table)
    assert changed == []


def test_edited_module_of_another_directory_is_reported() -> None:
    known = KernelFacts(edited_elsewhere=(OwnModule("helpers", "/src/helpers.py", is_edited=True),))

    (warning,) = job("import helpers", train="helpers.f()", facts=known).warnings
    assert warning.message.startswith("/src/helpers.py was edited after the kernel imported it; the job uses")
    assert job("import json", train="json.dumps(1)", facts=known).warnings == ()


def test_only_versions_of_the_newest_modules_are_kept(helpers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_versions, "_MODULES_MAX", 1)

    assert list(code_versions.table()["modules"]) == ["own_helpers"]
