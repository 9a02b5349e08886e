"""JupyterLab in Debian's chromium, driven as a person would: by roles, names and keys."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from tests.whole.site import Server, Site

FLAGS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 60_000
CLOSE_ALL = """
async () => {
  const { commands } = window.jupyterapp;
  await commands.execute('docmanager:save-all');
  await commands.execute('application:close-all');
}
"""
OPEN = "path => { window.jupyterapp.commands.execute('docmanager:open', { path }); }"


def chromium_path() -> str:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "chromium is missing (Debian: apt-get install chromium)"
    return found


@contextmanager
def a_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    """Return a notebook that was never run."""
    path.write_text(
        json.dumps(
            {
                "nbformat": 4,
                "nbformat_minor": 5,
                "metadata": {
                    "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
                },
                "cells": [
                    {
                        "cell_type": "code",
                        "id": f"cell-{i}",
                        "metadata": {},
                        "execution_count": None,
                        "outputs": [],
                        "source": source,
                    }
                    for i, source in enumerate(cells)
                ],
            }
        )
    )


@dataclass
class Lab:
    """One page of JupyterLab on a site's server."""

    site: Site
    server: Server
    page: Page
    errors: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, opener: Browser | BrowserContext, server: Server) -> Lab:
        page = opener.new_page()
        page.set_default_timeout(PATIENCE_MS)
        lab = cls(server.site, server, page)
        page.on("pageerror", lambda error: lab.errors.append(str(error)))
        return lab

    def notebook(self, name: str, cells: Sequence[str] | None = None) -> None:
        """Open a notebook (made of `cells`), and wait until its kernel is there.

        A new one opens alone in the page as it is; a saved one, in a page that is loaded again.
        """
        is_loaded = self.page.url.startswith(self.server.url)
        if cells is not None and is_loaded:
            self.page.evaluate(CLOSE_ALL)  # first: Lab asks what to do with an open file that has changed on disk
        if cells is not None:
            write_notebook(self.site.work / name, cells)
        if cells is not None and is_loaded:
            self.page.evaluate(OPEN, name)
            self.page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell")
        else:
            self.read(name)
        try:
            # Not the toolbar's indicator: it says idle before the kernel is connected, and a cell run then is lost.
            self.page.wait_for_selector("#jp-main-statusbar :text('| Idle')")
        except PlaywrightTimeoutError as error:
            bar = self.page.locator("#jp-main-statusbar").inner_text()
            log = (self.site.folder / "server.log").read_text()[-3000:]
            raise AssertionError(f"no kernel for {name}; the status bar says {bar!r}, the server:\n{log}") from error

    def read(self, name: str) -> None:
        """Open a notebook, and wait until it is shown."""
        self.page.goto(f"{self.server.url}lab/tree/{name}?token={self.server.token}&reset")
        self.page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell")

    def cell(self, index: int) -> Locator:
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").nth(index)

    def run(self, index: int) -> None:
        """Put the cursor into a cell and press shift-enter."""
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def ran(self, index: int) -> None:
        """Wait until a cell has run."""
        self.page.wait_for_function(
            "i => /\\[\\d+\\]/.test(document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell')"
            "[i].querySelector('.jp-InputArea-prompt').textContent)",
            arg=index,
        )

    def card(self, job: str) -> Locator:
        return self.page.get_by_role("region", name=f"Job {job}").first

    def is_at(self, job: str, state: str) -> None:
        """Wait until the card says so."""
        self.page.wait_for_selector(f'[aria-label="Job {job}"][data-status="{state.lower()}"]', state="attached")

    def panel(self) -> Locator:
        """Open the side panel unless it is open, and return it."""
        panel = self.page.get_by_role("region", name="Training", exact=True)
        if not panel.is_visible():
            self.page.locator('[data-id="jupyter-dlaas-panel"]').click()
        return panel

    def dark(self) -> None:
        """Choose Lab's dark theme; the server keeps it."""
        self.page.get_by_role("menuitem", name="Settings", exact=True).click()
        for label in ("Theme", "JupyterLab Dark"):
            self.page.locator(".lm-Menu-itemLabel").get_by_text(label, exact=True).click()
        self.page.wait_for_selector('body[data-jp-theme-name="JupyterLab Dark"]', state="attached")
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def save(self) -> None:
        self.page.keyboard.press("Control+s")

    def shot(self, path: Path) -> None:
        self.page.screenshot(path=str(path))
