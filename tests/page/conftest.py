"""One browser and one site for a module's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext

from tests.page.browser import Lab, a_browser
from tests.whole.conftest import ground
from tests.whole.site import Server, Site, standing, until

__all__ = ["ground"]

EXPOSED = "--LabApp.expose_app_in_browser=True"
"""Option with which a script can open a notebook in the page without loading the page again."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.page)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as found:
        yield found


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context() as made:
        yield made


@pytest.fixture(scope="module")
def site(ground: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(ground, "site", tmp_path_factory.mktemp("page"), slots=2) as made:
        yield made


@pytest.fixture(scope="module")
def server(site: Site) -> Server:
    return site.serve(EXPOSED)


@pytest.fixture(autouse=True)
def quiet_site(site: Site) -> Iterator[None]:
    """Every test ends its own jobs."""
    yield
    for view in site.client.jobs(limit=1000):
        if not view.state.is_final:
            site.job(view.id).cancel()
    until(lambda: not site.orphans(), "no process of a job is left")


@pytest.fixture(scope="module")
def first_page(context: BrowserContext, server: Server) -> Lab:
    return Lab.open(context, server)


@pytest.fixture
def lab(first_page: Lab) -> Iterator[Callable[..., Lab]]:
    """Return the module's page in the size that the test asks for. No error may have been thrown at the end.

    One page for all: a browser takes five seconds of a core to load JupyterLab.
    """

    def build(*, width: int = 1400, height: int = 1000) -> Lab:
        first_page.page.set_viewport_size({"width": width, "height": height})
        return first_page

    yield build
    thrown, first_page.errors[:] = list(first_page.errors), []
    assert thrown == []
