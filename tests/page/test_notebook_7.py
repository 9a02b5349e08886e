"""Jupyter Notebook 7: the same card and side panel as in JupyterLab."""

from __future__ import annotations

from playwright.sync_api import Browser
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from tests.page.browser import Lab, write_notebook
from tests.whole.site import Server, Site

TRAIN = "%%train little --gpus 1\nimport time\nfor epoch in range(2):\n    time.sleep(0.2)\n    print(f'epoch {epoch}')"


def run_first(book: Lab) -> None:
    """Run the first cell. Nothing on the page says that the kernel is connected, and a cell run before that is lost."""
    for _ in range(12):
        book.run(0)
        try:
            book.page.wait_for_selector(".jp-CodeCell >> nth=0 >> text=/\\[\\d+\\]/", timeout=5000)
            return
        except PlaywrightTimeoutError:
            continue
    raise AssertionError("the first cell did not run")


def test_card_and_panel_in_notebook_7(browser: Browser, site: Site, server: Server) -> None:
    write_notebook(site.work / "seven.ipynb", ["%load_ext jupyter_dlaas", TRAIN])
    with browser.new_context() as context:
        book = Lab.open(context, server)
        book.page.goto(f"{server.url}notebooks/seven.ipynb?token={server.token}")
        run_first(book)
        book.run(1)
        book.ran(1)
        book.page.wait_for_selector('[data-status="completed"] >> text=Completed')

        book.page.get_by_role("menuitem", name="View", exact=True).click()
        book.page.locator(".lm-Menu-itemLabel").get_by_text("Left Sidebar", exact=True).hover()
        book.page.locator(".lm-Menu-itemLabel").get_by_text("Show Training", exact=True).click()

        panel = book.page.get_by_role("region", name="Training", exact=True)
        panel.get_by_text("seven.ipynb").wait_for()
        assert panel.get_by_text("little-1", exact=True).count() == 1
