"""One pool for all tests of a file, whose engine is ended with all its jobs; and a kernel in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.notebook_e2e.rooms import Kernel, Pool, kernel_in, make_dirty


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    one = Pool(tmp_path_factory.mktemp("room"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def kernel(pool: Pool) -> Iterator[Kernel]:
    with kernel_in(pool.folder, JPY_API_TOKEN="secret", JUPYTER_DLAAS_WARM="1") as one:
        make_dirty(one)
        one.run("%load_ext jupyter_dlaas\nimport time")
        yield one
