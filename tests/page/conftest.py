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
    return site.serve()


@pytest.fixture(autouse=True)
def quiet_site(site: Site) -> Iterator[None]:
    """Every test ends its own jobs."""
    yield
    for view in site.client.jobs(limit=1000):
        if not view.state.is_final:
            site.job(view.id).cancel()
    until(lambda: not site.orphans(), "no process of a job is left")


@pytest.fixture
def lab(context: BrowserContext, server: Server) -> Iterator[Callable[..., Lab]]:
    """Opens pages; at the end none of them may have thrown."""
    opened: list[Lab] = []

    def build(**options: int) -> Lab:
        opened.append(Lab.open(context, server, **options))
        return opened[-1]

    yield build
    errors = [error for one in opened for error in one.errors]
    for one in opened:
        one.page.close()
    assert errors == []
