"""Shipped files: wheel and sdist with the built front end, installed without Node; imports that load little."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import jupyter_dlaas
from tests.house import files
from tests.selection import exhaustive

ROOT = Path(__file__).parent.parent
FRONT_END = ROOT / "jupyter_dlaas" / "labextension"
SITE_PACKAGES = Path(pytest.__file__).parent.parent
PACKAGE = ROOT / "jupyter_dlaas"
LEAN = (
    "wire",
    "jobdir",
    "failures",
    "runtime/system",
    "runtime/spawn",
    "runtime/fencing",
    "runtime/link",
    "runtime/hosts",
    "runtime/guardian",
    "runtime/zygote",
)
"""Packages of which every module runs where nothing of the user's may be missing."""

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True, slots=True)
class Distributions:
    sdist: Path
    wheel: Path


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment whose programs see no Node: its own `bin` is all of PATH."""

    folder: Path

    def run(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JUPYTER"))}
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        variables |= {"PATH": str(self.folder / "bin"), "HOME": str(home)}
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd=cwd or self.folder,
            env=variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )


def environment(folder: Path) -> Environment:
    venv.create(folder, with_pip=True, symlinks=True)
    return Environment(folder)


def built_front_end() -> None:
    if not (FRONT_END / "package.json").exists():
        pytest.skip("the built front end is missing: make .make/front-end")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Build the sdist of this tree, and the wheel from that sdist."""
    built_front_end()
    folder = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    return Distributions(next(folder.glob("*.tar.gz")), next(folder.glob("*.whl")))


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    """Copy this tree as a clone would have it: nothing is built in it."""
    copy = tmp_path / "tree"
    for path in files(ROOT):
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    return copy


@pytest.fixture
def borrowing(tmp_path: Path) -> Environment:
    """Create an environment that sees this one's packages, so that nothing is fetched; it has `jlpm`, but no Node."""
    made = environment(tmp_path / "env")
    own = next((made.folder / "lib").glob("python*")) / "site-packages"
    (own / "borrowed.pth").write_text(f"{SITE_PACKAGES}\n")
    (made.folder / "bin" / "jlpm").symlink_to(Path(sys.executable).parent / "jlpm")
    return made


def install_editable(where: Environment, tree: Path) -> subprocess.CompletedProcess[str]:
    return where.run("python", "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--editable", str(tree))


def assert_enabled(where: Environment) -> None:
    listed = where.run("python", "-m", "jupyter_server.extension.serverextension", "list").stdout
    text = " ".join(re.sub(r"\x1b\[\d+m", "", listed).split())  # without colours
    assert "dlaas_server enabled" in text, listed
    assert re.search(r"Validating dlaas_server\.\.\. dlaas_server (\S+ )?OK", text), listed


def test_the_wheel_carries_both_packages_and_the_built_front_end(distributions: Distributions) -> None:
    names = zipfile.ZipFile(distributions.wheel).namelist()

    data = f"jupyter_dlaas-{jupyter_dlaas.__version__}.data/data"
    assert {"jupyter_dlaas/__init__.py", "dlaas_server/__init__.py", "jupyter_dlaas/py.typed"} <= set(names)
    assert f"{data}/share/jupyter/labextensions/jupyter-dlaas/package.json" in names
    assert f"{data}/share/jupyter/labextensions/jupyter-dlaas/install.json" in names
    assert f"{data}/etc/jupyter/jupyter_server_config.d/jupyter_dlaas.json" in names


def test_the_wheel_carries_nothing_else(distributions: Distributions) -> None:
    names = zipfile.ZipFile(distributions.wheel).namelist()
    roots = {name.split("/")[0] for name in names}
    doubles = [name for name in names if "scripted" in name or "simulated" in name]

    release = f"jupyter_dlaas-{jupyter_dlaas.__version__}"
    assert roots == {"jupyter_dlaas", "dlaas_server", f"{release}.data", f"{release}.dist-info"}
    assert doubles == []  # test doubles lie with the tests


def test_sdist_has_front_end_source_and_build_without_tools(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]

    assert {"labextension/package.json", "jupyter_dlaas/labextension/package.json", "LICENSE"} <= set(names)
    assert not [name for name in names if "node_modules" in name or name.startswith((".venv", ".make"))]


def test_the_wheel_installs_without_node_in_an_empty_environment(distributions: Distributions, tmp_path: Path) -> None:
    empty = environment(tmp_path / "env")

    locked = str(ROOT / "requirements.lock")
    options = ("--quiet", "--no-compile", "-c", locked)  # most of what it would compile is never imported here
    installed = empty.run("python", "-m", "pip", "install", *options, str(distributions.wheel))
    assert installed.returncode == 0, installed.stdout

    assert_enabled(empty)
    assert (empty.folder / "share/jupyter/labextensions/jupyter-dlaas/package.json").exists()
    assert empty.run("jupyter", "dlaas", "--help").returncode == 0


def test_an_editable_install_enables_the_extension(copied_tree: Path, borrowing: Environment) -> None:
    built_front_end()
    built = shutil.copytree(FRONT_END, copied_tree / "jupyter_dlaas" / "labextension")
    for path in built.rglob("*"):
        path.touch()  # newer than its source, so that there is nothing to build
    installed = install_editable(borrowing, copied_tree)
    assert installed.returncode == 0, installed.stdout

    where = borrowing.run("python", "-c", "import jupyter_dlaas, dlaas_server; print(dlaas_server.__file__)").stdout
    assert where.strip() == str(copied_tree / "server" / "dlaas_server" / "__init__.py")
    assert_enabled(borrowing)
    assert (borrowing.folder / "share/jupyter/labextensions/jupyter-dlaas/package.json").exists()


@exhaustive
def test_editable_install_without_node_names_the_requirement(copied_tree: Path, borrowing: Environment) -> None:
    installed = install_editable(borrowing, copied_tree)

    assert installed.returncode != 0
    assert "Please install Node.js" in installed.stdout


def test_the_front_end_has_the_version_of_the_package() -> None:
    package = json.loads((ROOT / "labextension" / "package.json").read_text())

    assert package["version"] == jupyter_dlaas.__version__


def loaded_by(statement: str, *options: str) -> set[str]:
    """Return the top-level modules that `statement` leaves loaded in a new Python."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_import_loads_no_frameworks_widgets_or_server() -> None:
    loaded = loaded_by("import jupyter_dlaas")

    assert not loaded & {"torch", "numpy", "IPython", "ipywidgets", "tornado", "jupyter_server", "dlaas_server"}


@pytest.mark.parametrize("part", ["learner", *LEAN])
def test_code_in_foreign_containers_is_standard_library_only(part: str) -> None:
    name = f"jupyter_dlaas.{part.replace('/', '.')}"
    modules = [name, *(f"{name}.{path.stem}" for path in sorted((PACKAGE / part).glob("[a-z]*.py")) if part in LEAN)]
    assert len(modules) > 1 or part == "learner"
    loaded = loaded_by(f"import {', '.join(modules)}", "-I", "-S")

    assert loaded <= {"jupyter_dlaas", "__main__", "encodings"} | sys.stdlib_module_names
