"""*Train this notebook* with a kernel of another environment, in which our package is absent."""

from __future__ import annotations

import http.client
import json
import sys
import urllib.parse
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.selection import exhaustive
from tests.whole.site import Server, Site

Build = Callable[..., Site]
CELLS = (
    "import importlib.metadata, sys\nimport torch\nimport only_here\n",
    """\
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
""",
    """\
import jupyter_dlaas as dlaas
run = dlaas.run()
model, opt = run.prepare(model, opt)
for epoch in run.epochs(2):
    for x, y in run.batches(data, 16):
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
    run.log(loss=loss)
print('prefix', sys.prefix)
print('only here', only_here.WORD)
""",
)


def other_environment(folder: Path) -> Path:
    """Create an environment with torch (this one's, by a path file) and a module of its own, without our package."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
    (packages / "only_here.py").write_text("WORD = 'found'\n")
    return folder / "bin" / "python"


def post(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    where = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=60)
    headers = {"Authorization": f"token {server.token}", "Content-Type": "application/json"}
    connection.request("POST", where.path + path, json.dumps(body), headers)
    answer = connection.getresponse()
    found: dict[str, Any] = json.loads(answer.read())
    connection.close()
    assert answer.status == 201, found
    return found


@exhaustive
def test_a_kernel_without_our_package_trains_with_its_own_packages(site: Build) -> None:
    here = site()
    python = other_environment(here.folder / "other")
    spec = here.folder / "data" / "kernels" / "other"
    spec.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Other", "language": "python"}))
    server = here.serve(program="jupyter_server")

    made = post(
        server,
        "dlaas/notebook",
        {
            "key": "train-this-notebook-1",
            "path": "other.ipynb",
            "kernel_name": "other",
            "cells": [{"source": source} for source in CELLS],
            "spec": {"name": "other", "learners_max": 2},
        },
    )
    job = here.job(made["id"]).wait(120)

    assert job.status == "COMPLETED"
    assert f"prefix {here.folder / 'other'}" in job.logs()
    assert "only here found" in job.logs()
    assert len(job.metrics()) == 2
