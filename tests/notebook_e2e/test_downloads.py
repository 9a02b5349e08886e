"""Two learners of a notebook's job and one file: `%%train` never fetches it twice at the same time."""

from __future__ import annotations

from tests.learner.test_prelude import serving
from tests.notebook_e2e.rooms import Kernel, Pool


def test_learners_repeat_a_download_one_at_a_time(kernel: Kernel, pool: Pool) -> None:
    with serving() as server:
        kernel.run(
            "import pathlib, urllib.request\n"
            "def fetch(name):\n"
            "    path = pathlib.Path(name)\n"
            "    if not path.exists():\n"
            f"        urllib.request.urlretrieve('{server.url}', path)\n"
            "    return path.read_bytes()"
        )
        kernel.run("data = fetch('data.bin')")
        kernel.run("pathlib.Path('data.bin').unlink()")
        before = server.begun
        kernel.run("%%train fetched --learners 2 --gpus-per-learner 0 -o size --wait\nsize = len(data)")

        assert kernel.value("size") == 10_000  # too much for a literal in the program
        assert (server.begun - before, server.at_once) == (1, 1)
