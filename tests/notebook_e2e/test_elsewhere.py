"""The same from plain IPython, from scripts, and in a kernel of another environment than ours."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import jupyter_dlaas
from tests.notebook_e2e.rooms import Pool, environment, kernel_in

OURS = Path(jupyter_dlaas.__file__).parents[1]


def ran(pool: Pool, *command: str, typed: str = "") -> str:
    """Return the output of a program that has this pool, in its own folder."""
    done = subprocess.run(
        command,
        env=environment(pool.folder),
        cwd=pool.folder,
        input=typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_script_submits_source_and_waits_for_its_result(pool: Pool) -> None:
    script = pool.folder / "go.py"
    script.write_text(
        "import jupyter_dlaas as dlaas\n"
        "job = dlaas.submit('x = 6\\nanswer = x * 7\\n', name='scripted', outputs='answer')\n"
        "print(job.wait(60).result('answer'), job.status)\n"
    )

    assert ran(pool, sys.executable, str(script)) == "42 COMPLETED\n"


def test_a_decorated_function_of_a_script_is_a_job(pool: Pool) -> None:
    script = pool.folder / "decorated.py"
    script.write_text(
        "import jupyter_dlaas as dlaas\n"
        "@dlaas.train(outputs='returned')\n"
        "def power(base, times=2):\n"
        "    value = 1\n"
        "    for _ in range(times):\n"
        "        value *= base\n"
        "    return value\n"
        "if __name__ == '__main__':\n"
        "    job = power(3, times=4)\n"
        "    print(job.name, job.wait(60).result('returned'))\n"
    )

    assert ran(pool, sys.executable, str(script)) == "power 81\n"


def test_a_terminals_ipython_trains_and_gets_its_results(pool: Pool) -> None:
    typed = (
        "%load_ext jupyter_dlaas\n"
        "rate = 0.5\n"
        "%%train terminal -o twice\ntwice = rate * 2\n\n\n"
        "_ = dlaas.job('terminal').wait(60)\n"
        "print('twice is', twice)\n"
        "%dlaas jobs\n"
        "%%train wrong\nprint(rat)\n\n\n"
        "exit\n"
    )

    said = ran(
        pool, sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--no-confirm-exit", typed=typed
    )

    assert re.search(r"terminal-\d+  (DEPLOYING|QUEUED)", said), "one line reports the job"
    assert "twice: assigned from terminal-" in said
    assert "twice is 1.0" in said
    assert "COMPLETED" in said
    assert "cell [7], line 2, reads `rat`, which no executed cell defines. Did you mean `rate`?" in said
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment of its own: it shares packages with ours by a path file, so nothing is downloaded."""
    folder = tmp_path_factory.mktemp("other") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    site = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    Path(site, "theirs.py").write_text("WHERE = __file__\n")
    Path(site, "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n{OURS}\n")
    return python


def test_a_kernel_of_another_environment_trains_with_its_own_packages(pool: Pool, other_python: Path) -> None:
    with kernel_in(pool.folder, python=str(other_python)) as kernel:
        kernel.run("%load_ext jupyter_dlaas\nimport torch, theirs")
        kernel.run("model = torch.nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)")
        kernel.run(
            "%%train foreign -o seen --wait\n"
            "import sys\n"
            "opt.zero_grad()\n"
            "model(torch.ones(1, 2)).sum().backward()\n"
            "opt.step()\n"
            "seen = sys.prefix, theirs.WHERE, type(model.weight.grad).__name__"
        )
        prefix, where, kind = kernel.value("seen")

    assert Path(prefix).samefile(other_python.parents[1])
    assert Path(where).is_relative_to(other_python.parents[1])
    assert kind == "Tensor"
