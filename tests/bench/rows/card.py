"""From shift-enter on a `%%train` cell to its card with a live state, in a real browser."""

from __future__ import annotations

import importlib.util
import time

from tests.bench.measuring import ROOT, Bench, Unmeasurable, milliseconds
from tests.bench.table import Line, figure

CELLS = ["%load_ext jupyter_dlaas\nimport time", "%%train\nfor step in range(3):\n    time.sleep(0.1)"]
CARD = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell [aria-label^='Job '][data-status]"


def measure(bench: Bench) -> list[Line]:
    """One page; each run is the same cell again, whose card takes the place of the one before."""
    if importlib.util.find_spec("jupyter_dlaas.kernel.magics") is None:
        raise Unmeasurable("%%train is not there yet")
    if not (ROOT / "jupyter_dlaas" / "labextension" / "static").is_dir():
        raise Unmeasurable("the front end is not built (make .make/front-end)")
    from tests.page.browser import Lab, a_browser

    server = bench.site.serve()
    with a_browser() as browser:
        lab = Lab.open(browser, server)
        lab.notebook("bench.ipynb", CELLS)
        lab.run(0)
        lab.ran(0)
        found: list[float] = []
        for i in range(max(3, bench.runs // 2) + 1):
            lab.cell(1).locator(".cm-content").click()
            before = {card.get_attribute("aria-label") for card in lab.page.locator(CARD).all()}
            begin = time.monotonic_ns()
            lab.page.keyboard.press("Shift+Enter")
            lab.page.wait_for_function(
                "([card, before]) => [...document.querySelectorAll(card)]"
                ".some(one => !before.includes(one.getAttribute('aria-label')))",
                arg=[CARD, sorted(filter(None, before))],
            )
            if i:
                found.append(milliseconds(begin, time.monotonic_ns()))
            lab.page.wait_for_selector(f"{CARD}[data-status='completed']")
    return [
        Line(what="%%train shift-enter → live card (browser)", bar="≤ 500 ms", measured=figure(found, "ms"), beside="–")
    ]
