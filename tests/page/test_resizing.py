"""+ and − pressed twenty times while a job trains: in a real JupyterLab, in a real browser, with real learners."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import expect

from jupyter_dlaas.wire.protocol import Elastic, JobView, Resize
from tests.page.browser import Lab
from tests.selection import exhaustive
from tests.whole.site import Site, standing, until

Open = Callable[..., Lab]
MOST = 4
LOAD = "%load_ext jupyter_dlaas"
SETUP = """\
import time
import torch
torch.manual_seed(0)
train_set = torch.utils.data.TensorDataset(torch.randn(2400, 8), torch.randint(0, 2, (2400,)))
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)"""
TRAIN = """\
%%train {name} --gpus 1:4
run = dlaas.run()
model, opt = run.prepare(model, opt)
for epoch in run.epochs(10_000):
    for x, y in run.batches(train_set, 48):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        run.log(loss=loss)
        time.sleep(0.02)"""

# Each canvas remembers what was last drawn on it: the corners of its longest line, and where dashed lines stand.
WATCH_DRAWING = """
(() => {
  const corners = new WeakMap();
  const keep = (type, name) => {
    const own = type.prototype[name];
    type.prototype[name] = function (x, y) {
      if (name === 'moveTo' || !corners.has(this)) corners.set(this, corners.get(this) ?? []);
      corners.get(this).push([x, y]);
      return own.call(this, x, y);
    };
  };
  for (const name of ['moveTo', 'lineTo']) {
    keep(Path2D, name);
    keep(CanvasRenderingContext2D, name);
  }
  const { beginPath, stroke, clearRect } = CanvasRenderingContext2D.prototype;
  Object.assign(CanvasRenderingContext2D.prototype, {
    clearRect(...box) { this.canvas.dlaasLine = []; this.canvas.dlaasDashes = []; return clearRect.apply(this, box); },
    beginPath() { corners.set(this, []); return beginPath.call(this); },
    stroke(...path) {
      const drawn = corners.get(path[0] ?? this) ?? [];
      if (!path.length && this.getLineDash().length) {
        this.canvas.dlaasDashes = drawn.filter((_, i) => i % 2 === 0).map(([x]) => x);
      } else if (path.length && drawn.length > (this.canvas.dlaasLine ?? []).length) {
        this.canvas.dlaasLine = drawn;
      }
      return stroke.apply(this, path);
    },
  });
})();
"""
# Where the scale control stands in each frame, what it says, and what is pressed.
WATCH_SCALE = """
window.dlaasSeen = [];
window.dlaasPlaces = new Set();
(() => {
  let last = '';
  const tell = text => dlaasSeen.push(`${Math.round(performance.now())} ms: ${text}`);
  const look = () => {
    const control = document.querySelector('[role=region][aria-label^="Job "] .jp-dlaas-stepper');
    const box = control?.getBoundingClientRect();
    if (box?.width) {
      const at = [...control.querySelectorAll('button')].map(button => button.getBoundingClientRect().left - box.left);
      dlaasPlaces.add(JSON.stringify([...at, box.width]));
      const row = control.closest('.jp-dlaas-scalebar');
      const now = `at ${Math.round(box.left)}, ${Math.round(box.top)}: ${row.innerText}`;
      if (now !== last) tell(now.replaceAll('\\n', ' '));
      last = now;
    }
    requestAnimationFrame(look);
  };
  look();
  document.addEventListener('click', event => tell(`a click on ${event.target.outerHTML.slice(0, 90)}`), true);
})();
"""
READ_DRAWING = """
job => {
  const card = document.querySelector(`[role=region][aria-label="Job ${job}"]`);
  const canvas = card.querySelector('[role=img][aria-label^="Loss"] canvas');
  const { width, height } = canvas;
  const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
  const inked = [];
  for (let x = 0; x < width; x++) {
    let is_inked = false;  // with the colour of the curve: the lines for reading and the marks are grey
    for (let y = 0; y < height && !is_inked; y++) {
      const at = 4 * (y * width + x);
      is_inked = data[at + 3] > 20 && data[at + 2] - data[at] > 40;
    }
    inked.push(is_inked);
  }
  return { line: canvas.dlaasLine, dashes: canvas.dlaasDashes, inked };
}
"""


@pytest.fixture(scope="module")
def site(ground: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(ground, "site", tmp_path_factory.mktemp("page"), slots=MOST) as made:
        yield made


def started(lab: Lab, name: str) -> str:
    """Run the training cell of a notebook. Return the handle of its job, which trains."""
    lab.page.add_init_script(WATCH_DRAWING)
    lab.page.add_init_script(WATCH_SCALE)
    lab.notebook(f"{name}.ipynb", [LOAD, SETUP, TRAIN.format(name=name)])
    for index in (0, 1):
        lab.run(index)
        lab.ran(index)
    lab.run(2)
    card = lab.page.wait_for_selector(f'[aria-label^="Job {name}-"]')
    job = ((card and card.get_attribute("aria-label")) or "").removeprefix("Job ")
    lab.is_at(job, "PROCESSING")
    return job


@dataclass
class Stepper:
    """The scale control of a job's card."""

    lab: Lab
    job: str

    def press(self, change: int) -> None:
        name = f"Add a CPU slot to {self.job}" if change > 0 else f"Remove a CPU slot from {self.job}"
        self.lab.card(self.job).get_by_role("button", name=name).click()

    def shows(self, wish: int) -> None:
        card = self.lab.card(self.job)
        number = card.get_by_role("spinbutton", name=f"CPU slots of {self.job}")
        try:
            expect(number).to_have_attribute("aria-valuenow", str(wish))
        except AssertionError as error:
            raise AssertionError(f"{error}\nTHE CARD:\n{card.inner_text()}\nSEEN:\n{self.seen()}") from error

    def seen(self) -> str:
        """Return what the scale control showed, its position, and what was pressed, with times of the page's clock."""
        return "\n".join(self.lab.page.evaluate("dlaasSeen"))

    def places(self) -> set[tuple[float, ...]]:
        """Return the positions of − and + in the control, and its width, in every frame so far, in px."""
        return {tuple(place) for place in self.lab.page.evaluate("[...dlaasPlaces].map(JSON.parse)")}


def is_settled(view: JobView, learners: int) -> bool:
    return (view.size.wish, view.size.held, view.transition, view.state) == (learners, learners, None, "PROCESSING")


def texts_of_marks(lab: Lab, job: str) -> list[str]:
    """Press each mark above the curves, and return their texts in order."""
    card, texts = lab.card(job), []
    marks = card.get_by_role("group", name="Changes of size").get_by_role("button")
    for index in range(marks.count()):
        marks.nth(index).click()
        texts += card.get_by_role("list", name="What changed").get_by_role("listitem").all_inner_texts()
    return texts


def says(text: str, resize: Resize) -> bool:
    """From, to, by whom, at which step, and how long the pause was."""
    found = re.fullmatch(r"(\d) → (\d), (\w+), at [\d:]+, step ([\d,]+), paused for ([\d.]+) (ms|s)", text)
    assert found is not None, text
    before, after, by, step, pause, unit = found.groups()
    pause_s = float(pause) / (1000 if unit == "ms" else 1)
    same = (int(before), int(after), by, int(step.replace(",", ""))) == (
        resize.before,
        resize.after,
        resize.by,
        resize.step,
    )
    return same and pause_s == pytest.approx(resize.idle_s, abs=0.0006 if unit == "ms" else 0.06)


def test_last_of_many_presses_wins_and_the_curve_is_complete(
    lab: Open, site: Site, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    presses = 20 if request.config.getoption("exhaustive") else 10
    seed = int(os.environ.get("DLAAS_PRESSES_SEED") or random.randrange(2**32))
    print(f"DLAAS_PRESSES_SEED={seed} presses in this order again")
    rng = random.Random(seed)
    page = lab(height=1400)
    job = started(page, "pressed")
    stepper, intent = Stepper(page, job), site.job(job).view.size.wish
    first = intent

    for _ in range(presses):
        page.page.wait_for_timeout(rng.choice((rng.uniform(0, 250), rng.uniform(250, 1500))))
        change = 1 if intent == 1 else -1 if intent == MOST else rng.choice((-1, 1))
        intent += change
        stepper.press(change)
        stepper.shows(intent)

    assert len(stepper.places()) == 1, "what is pressed again and again stays where it is"
    until(lambda: is_settled(site.job(job).view, intent), "the gang has the size of the last intent")
    until(lambda: len(site.learners(job)) == intent, "learners that had been asked to leave are gone")
    stepper.shows(intent)
    steps_now = [m["step"] for m in site.job(job).metrics()][-1]
    until(lambda: [m["step"] for m in site.job(job).metrics()][-1] > steps_now + 10, "it trains on")
    page.card(job).get_by_role("button", name="Halt").click()
    page.is_at(job, "HALTED")

    view, metrics = site.job(job).view, site.job(job).metrics()
    assert view.progress is not None
    assert [m["step"] for m in metrics] == list(range(1, view.progress.step + 1)), "each step is logged once"
    sizes = [first, *(resize.after for resize in view.resizes)]
    assert [resize.before for resize in view.resizes] == sizes[:-1], "each change begins where the one before ended"
    assert (sizes[-1], {resize.by for resize in view.resizes}) == (intent, {"you"})
    assert len(view.resizes) >= 2, "some presses came alone"
    assert all(resize.idle_s is not None for resize in view.resizes)
    assert view.restarts == 0

    page.card(job).locator("summary", has_text="Metrics").click()
    page.card(job).get_by_role("img", name=re.compile("^Loss")).wait_for()
    *texts, halted = texts_of_marks(page, job)
    assert "Halted by you" in halted
    assert len(texts) == len(view.resizes)
    assert all(says(text, resize) for text, resize in zip(texts, view.resizes, strict=True)), texts
    drawn = page.page.evaluate(READ_DRAWING, job)
    assert len(drawn["line"]) == len(metrics), "the curve has each step once"
    across = [x for x, _ in drawn["line"]]
    assert across == sorted(across)
    assert all(drawn["inked"][round(across[0]) : round(across[-1])]), "there is ink all along"
    assert len(drawn["dashes"]) == len(view.resizes) + 1, "each change, and the halt, is a line through the curve"
    assert drawn["dashes"] == sorted(drawn["dashes"])

    events = site.job(job).events()
    lines = re.findall(r"(\d) → (\d), by you, at step [\d,]+ after a pause of", events)
    assert [(int(a), int(b)) for a, b in lines] == list(pairwise(sizes)), events
    wishes = re.findall(r"requested (\d) learner", events)
    assert int(wishes[-1]) == intent, events
    page.shot(tmp_path / "pressed.png")


@exhaustive
def test_auto_is_switched_on_and_minus_switches_it_off(lab: Open, site: Site) -> None:
    page = lab()
    job = started(page, "auto")
    switch = page.card(job).get_by_role("switch", name="Auto")
    expect(switch).to_have_attribute("aria-checked", "false")

    switch.focus()
    page.page.keyboard.press("Space")
    expect(switch).to_have_attribute("aria-checked", "true")
    until(lambda: site.job(job).view.elastic is Elastic.AUTO, "the pool chooses the size")

    def taken_back() -> bool:
        wish = site.job(job).view.size.wish
        Stepper(page, job).press(1 if wish == 1 else -1)
        page.page.wait_for_timeout(500)
        return site.job(job).view.elastic is Elastic.MANUAL

    until(taken_back, "the person does")
    expect(switch).to_have_attribute("aria-checked", "false")
