"""Files beside own modules: they travel with their package, or are linked, or are named before the job starts."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.api import package_data as data_module
from jupyter_dlaas.api import sources
from jupyter_dlaas.api.package_data import package_data
from jupyter_dlaas.learner.process.source_links import link_originals

PACKAGE = {
    "mypkg/__init__.py": "",
    "mypkg/config.json": "0.5",
    "mypkg/conf.py": "from pathlib import Path\nCONFIG = (Path(__file__).parent / 'config.json').read_text()\n",
}
READERS = {
    "__file__ and pathlib": PACKAGE | {"main.py": "from mypkg.conf import CONFIG as found\n"},
    "__file__ and os.path": {
        "mypkg/__init__.py": "",
        "mypkg/sub/__init__.py": "",
        "mypkg/sub/deep.py": "import os\n"
        "with open(os.path.join(os.path.dirname(__file__), '..', 'a', 'b.txt')) as file:\n    found = file.read()\n",
        "mypkg/a/b.txt": "0.5",
        "main.py": "from mypkg.sub.deep import found\n",
    },
    "importlib.resources": {
        "mypkg/__init__.py": "",
        "mypkg/data/__init__.py": "",
        "mypkg/data/rates.txt": "0.5",
        "main.py": "import mypkg.data, importlib.resources\n"
        "found = importlib.resources.files('mypkg.data').joinpath('rates.txt').read_text()\n",
    },
    "pkgutil": {
        "mypkg/__init__.py": "import pkgutil\nfound = pkgutil.get_data(__name__, 'rates.txt').decode()\n",
        "mypkg/rates.txt": "0.5",
        "main.py": "from mypkg import found\n",
    },
    "a package without __init__.py": {
        "space/inner/conf.py": "from pathlib import Path\nfound = Path(__file__).with_name('x.txt').read_text()\n",
        "space/inner/x.txt": "0.5",
        "main.py": "from space.inner.conf import found\n",
    },
    "a plain module": {
        "helper.py": "from pathlib import Path\nfound = (Path(__file__).parent / 'tables/x.txt').read_text()\n",
        "tables/x.txt": "0.5",
        "main.py": "from helper import found\n",
    },
    "a name that is made up at run time": {
        "helper.py": "from pathlib import Path\nfound = (Path(__file__).parent / f'{1 + 1}.txt').read_text()\n",
        "2.txt": "0.5",
        "main.py": "from helper import found\n",
    },
    "a folder above the package": {
        "mypkg/__init__.py": "",
        "mypkg/conf.py": "from pathlib import Path\nROOT = Path(__file__).resolve().parents[1]\n"
        "found = (ROOT / 'data' / 'x.txt').read_text()\n",
        "data/x.txt": "0.5",
        "main.py": "from mypkg.conf import found\n",
    },
}


@pytest.fixture
def unimported() -> Iterator[None]:
    """Own modules of one test are not those of the next."""
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def send(work: Path, job_dir: Path) -> None:
    """Do what a submit and a learner do with the files of a program, without a pool."""
    text = (work / "main.py").read_text()
    modules = sources.own_modules(text, work, work / "main.py")
    data = package_data(text, modules)
    assert not data.notes
    for name, path in {**data.files, **modules}.items():
        there = job_dir / "files" / name
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(path.read_bytes())
    for one in data.inputs():
        there = job_dir / one.path
        there.parent.mkdir(exist_ok=True)
        there.write_text(one.text or "")
    link_originals(job_dir)
    link_originals(job_dir)  # another learner does the same


@pytest.mark.usefixtures("unimported")
@pytest.mark.parametrize("way", READERS)
def test_a_module_finds_the_files_beside_it_in_a_job(tmp_path: Path, way: str) -> None:
    work, job_dir = write(tmp_path / "work", READERS[way]), tmp_path / "job"
    send(work, job_dir)

    sys.path.insert(0, str(job_dir / "files"))
    assert runpy.run_path(str(work / "main.py"))["found"] == "0.5"


@pytest.mark.usefixtures("unimported")
def test_job_reads_package_data_as_of_submit(tmp_path: Path) -> None:
    work, job_dir = write(tmp_path / "work", READERS["__file__ and pathlib"]), tmp_path / "job"
    send(work, job_dir)
    (work / "mypkg" / "config.json").write_text("0.9")

    sys.path.insert(0, str(job_dir / "files"))
    assert runpy.run_path(str(work / "main.py"))["found"] == "0.5"


def test_unused_package_data_is_not_copied(tmp_path: Path) -> None:
    work = write(tmp_path, PACKAGE | {"mypkg/conf.py": "CONFIG = 1\n", "main.py": "import mypkg.conf\n"})
    text = (work / "main.py").read_text()

    data = package_data(text, sources.own_modules(text, work))

    assert (data.files, data.inputs(), data.notes) == ({}, (), ())


def test_package_with_too_much_data_is_reported_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_module, "_FILES_MAX", 3)
    work = write(tmp_path, PACKAGE | {f"mypkg/{n}.txt": "" for n in range(5)} | {"main.py": "import mypkg.conf\n"})
    text = (work / "main.py").read_text()

    data = package_data(text, sources.own_modules(text, work))

    assert not data.files
    (note,) = data.notes
    assert "package `mypkg` has more than 3 files of data" in note.text
    assert "--include mypkg" in note.text


ABOVE = {
    "Path(__file__).parent.parent / 'data'": True,
    "Path(__file__).resolve().parents[1]": True,
    "os.path.join(os.path.dirname(__file__), os.pardir, 'x')": True,
    "(Path(__file__).parent / '../data')": True,
    "os.path.dirname(os.path.dirname(os.path.abspath(__file__)))": True,
    "(Path(__file__).parent / 'a', Path(__file__).parent / 'b')": False,
    "Path(__file__).resolve().parents[0]": False,
    "Path('../data').parent.parent": False,
}


@pytest.mark.parametrize("path", ABOVE)
def test_a_module_that_looks_above_the_jobs_folder_is_named(tmp_path: Path, path: str) -> None:
    work = write(tmp_path, {"helper.py": f"import os\nfrom pathlib import Path\nwhere = {path}\n"})

    data = package_data("import helper\n", {"helper.py": work / "helper.py"})

    assert [note.code for note in data.notes] == ["files_above"] * ABOVE[path]
