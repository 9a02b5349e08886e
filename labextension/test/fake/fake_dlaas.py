"""A FAKE of the server part, for looking at the page: it trains nothing and forgets everything.

A Jupyter server extension that speaks the wire (`server/WIRE.md`) about one made-up job, whose log, metrics and state
follow a clock, and about the jobs of the golden files, which never change. For developers of the front end only.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado.websocket import WebSocketHandler

GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "wire"
Json = dict[str, Any]


def golden(name: str) -> Json:
    return dict(json.loads((GOLDEN / f"{name}.json").read_text()))


def action(name: str, **more: Any) -> Json:
    return {"id": name, "label": name.capitalize(), "enabled": True, "why_not": None, **more}


class World:
    """All that the fake knows."""

    def __init__(self) -> None:
        self.row = 100
        self.jobs: dict[str, Json] = {}
        for name in ("queued", "halted", "failed", "completed", "cancelled", "deploying"):
            view = golden(f"job_{name}")
            view["number"] += len(self.jobs)
            if view["id"] == "resnet-48":
                view["id"] = f"{name}-{view['number']}"
            later = time.time() - 4000 - view["submitted_s"]
            for key in ("submitted_s", "started_s", "ended_s"):
                view[key] = view[key] and view[key] + later
            view["resizes"] = [{**r, "at_s": r["at_s"] + later} for r in view["resizes"]]
            self.jobs[view["id"]] = view
        live = golden("job_processing")
        live.update(id="live-1", name="live", number=1, submitted_s=time.time(), started_s=None, resizes=[], notes=[])
        live["size"] = {"min": 1, "max": 4, "wish": 2, "held": 0}
        live.update(state="QUEUED", state_label="Queued", tone="idle", status_line="1st of 1", learners=[], progress=None)
        live["reason"] = "2 GPUs at once; 1 is free."
        self.live = live
        self.jobs["live-1"] = live
        self.logs: dict[str, str] = {"0": "", "1": ""}
        self.metrics = ""
        self.step = 0
        self.is_quiet = False
        self.listeners: set[Stream] = set()

    def changed(self, view: Json) -> None:
        self.row += 1
        view["row"] = self.row

    def to(self, state: str, tone: str, label: str | None = None, **more: Any) -> None:
        self.live.update(state=state, tone=tone, state_label=label or state.capitalize(), status_line="", reason="")
        self.live.update(more)
        names = {"HALTED": ("scale", "resume", "cancel"), "COMPLETED": ("retry",), "CANCELLED": ("retry",)}
        self.live["actions"] = [action(n) for n in names.get(state, ("scale", "halt", "cancel"))]
        self.changed(self.live)

    def learners(self, count: int, state: str = "Training") -> list[Json]:
        return [
            {"member": n, "generation": 1, "rank": n, "node": "here", "devices": [f"gpu-{n}"], "state": state}
            for n in range(count)
        ]

    async def run(self) -> None:
        """The made-up job, from waiting to completed."""
        await asyncio.sleep(2)
        size = self.live["size"]
        size["held"] = size["wish"]
        self.to("DEPLOYING", "active", started_s=time.time(), learners=self.learners(2, "Starting"))
        await asyncio.sleep(1)
        self.to("PROCESSING", "active", learners=self.learners(size["held"]))
        while self.step < 3000:
            await asyncio.sleep(0.1)
            if self.live["state"] == "PROCESSING":
                self.train()
            if self.live["state"] == "CANCELLED":
                return
        self.to("COMPLETED", "good", ended_s=time.time(), learners=[], results=["model", "history"])
        size["held"] = 0

    def train(self) -> None:
        size = self.live["size"]
        self.step += 2 * size["held"]
        loss = 2.3 * math.exp(-self.step / 900) + 0.1 + random.random() * 0.1 / (1 + self.step / 300)
        values = {"loss": loss}
        if self.step % 50 < 2 * size["held"]:
            values["val_accuracy"] = 1 - 0.6 * math.exp(-self.step / 700)
        self.metrics += json.dumps({"t": time.time(), "step": self.step, "values": values}) + "\n"
        self.logs["0"] += f"step {self.step} loss {loss:.3f}\n"
        if self.step % 70 < 3:
            self.logs["1"] += "\x1b[33mUserWarning: something odd ✓\x1b[0m\n"
        fraction = self.step / 3000
        left = (3000 - self.step) / (20 * size["held"])
        self.live["progress"] = {
            "epoch": int(fraction * 10) + 1,
            "epochs": 10,
            "step": self.step,
            "steps": 3000,
            "fraction": fraction,
            "steps_per_s": 20.0 * size["held"],
            "samples_per_s": 640.0 * size["held"],
            "left_s_low": left * 0.95,
            "left_s_high": left * 1.1,
            "at_s": time.time(),
        }

    async def scale(self, wish: int) -> None:
        size = self.live["size"]
        before = size["held"]
        size["wish"] = wish
        if before == 0 or before == wish:
            self.changed(self.live)
            return
        label = f"Processing · scaling {before} → {wish}"
        self.to("PROCESSING", "active", label, transition="scaling", reason=f"Training continues on {before}.")
        await asyncio.sleep(2)
        size["held"] = wish
        resize = {"at_s": time.time(), "step": self.step, "before": before, "after": wish, "by": "you", "idle_s": 0.04}
        self.live["resizes"] = [*self.live["resizes"], resize]
        self.to("PROCESSING", "active", transition=None, learners=self.learners(wish))

    async def halt(self) -> None:
        self.to("PROCESSING", "active", "Processing · halting", transition="halting", status_line="writes a checkpoint")
        await asyncio.sleep(1)
        self.live["size"]["held"] = 0
        self.to("HALTED", "idle", transition=None, status_line=f"by you at step {self.step}", learners=[])

    def pool(self) -> Json:
        pool = golden("pool")
        devices = pool["nodes"][1]["devices"]
        for n in (2, 3):
            devices[n]["job"] = "live-1" if self.live["size"]["held"] > n - 2 else None
        return {**pool, "row": self.row, "queue": ["queued-48"]}


class Base(JupyterHandler):
    @property
    def world(self) -> World:
        return self.settings["fake_world"]

    def view(self, id: str) -> Json:
        found = self.world.jobs.get(id)
        if found is None:
            self.set_status(404)
            return {"error": {"code": "not_found", "message": f"there is no job {id}"}}
        return found


class Pool(Base):
    def get(self) -> None:
        self.finish(self.world.pool())


class List(Base):
    def get(self) -> None:
        self.finish({"jobs": list(self.world.jobs.values())})


class Job(Base):
    def get(self, id: str) -> None:
        self.finish(self.view(id))

    async def patch(self, id: str) -> None:
        wish = json.loads(self.request.body)["learners"]
        if wish == 3:
            self.set_status(422)
            self.finish({"error": {"code": "refused", "message": "The fake refuses 3."}})
            return
        asyncio.get_event_loop().create_task(self.world.scale(wish))
        await asyncio.sleep(0.05)
        self.finish(self.view(id))


class Verb(Base):
    async def post(self, id: str, verb: str) -> None:
        world = self.world
        if verb == "halt":
            asyncio.get_event_loop().create_task(world.halt())
        elif verb == "resume":
            world.live["size"]["held"] = world.live["size"]["wish"]
            world.to("PROCESSING", "active", learners=world.learners(world.live["size"]["held"]))
        elif verb == "cancel":
            world.live["size"]["held"] = 0
            world.to("CANCELLED", "idle", ended_s=time.time(), learners=[], status_line="by you")
        await asyncio.sleep(0.05)
        self.finish(self.view(id))

    def get(self, id: str, verb: str) -> None:
        answers = {
            "report": "a report",
            "why": {"sentences": ["It waits for 2 GPUs."]},
            "source": {"source": "print(1)\n", "files": []},
            "events": {"events": [{"row": 1, "at_s": time.time(), "kind": "submitted", "text": "Submitted."}]},
        }
        self.finish(answers[verb])


class Quiet(Base):
    """Make the fake fall silent, to see what the page says then."""

    def get(self, on: str) -> None:
        self.world.is_quiet = on == "on"
        self.finish("ok")


class Stream(WebSocketHandler, JupyterHandler):
    def get_compression_options(self) -> None:
        return None

    @property
    def world(self) -> World:
        return self.settings["fake_world"]

    def open(self) -> None:
        self.jobs: dict[str, Json] = {}
        self.is_pool = False
        self.send({"type": "hello", "protocol": 1, "pool": "lab", "engine": "fake", "user": "ana", "now_s": time.time()})
        self.task = asyncio.get_event_loop().create_task(self.pump())

    def on_close(self) -> None:
        self.task.cancel()

    def on_message(self, text: str | bytes) -> None:
        frame = json.loads(text)
        if frame["type"] == "subscribe":
            self.jobs[frame["job"]] = {**frame["cursor"], "want": frame["want"], "at_s": 0.0}
        elif frame["type"] == "unsubscribe":
            self.jobs.pop(frame["job"], None)
        elif frame["type"] == "subscribe_pool":
            self.is_pool = True
            self.send({"type": "jobs", "jobs": list(self.world.jobs.values())})
            self.send({"type": "pool", "pool": self.world.pool()})

    def send(self, frame: Json) -> None:
        if not self.world.is_quiet:
            self.write_message(json.dumps(frame))

    async def pump(self) -> None:
        beat = 0.0
        row = 0
        while True:
            await asyncio.sleep(0.05)
            if self.world.is_quiet:
                continue
            if time.time() - beat > 2:
                beat = time.time()
                self.send({"type": "heartbeat", "now_s": beat})
            if self.is_pool and row != self.world.row:
                row = self.world.row
                self.send({"type": "pool", "pool": self.world.pool()})
                self.send({"type": "job", "job": self.world.live})
            for id, cursor in list(self.jobs.items()):
                self.tell(id, cursor)

    def tell(self, id: str, cursor: Json) -> None:
        view = self.world.jobs.get(id)
        if view is None:
            self.jobs.pop(id)
            self.send({"type": "error", "job": id, "code": "not_found", "message": f"there is no job {id}"})
            return
        if view["row"] > cursor["row"]:
            cursor["row"] = view["row"]
            self.send({"type": "job", "job": view})
        if id != "live-1":
            return
        progress = view["progress"]
        if progress and progress["at_s"] > cursor["at_s"]:
            cursor["at_s"] = progress["at_s"]
            self.send({"type": "progress", "job": id, "progress": progress})
        if "log" not in cursor["want"]:
            return
        for member, text in self.world.logs.items():
            data, at = text.encode(), cursor["logs"].get(member, 0)
            if len(data) > at:
                cursor["logs"][member] = len(data)
                frame = {"from": at, "to": len(data), "text": data[at:].decode(), "at_s": time.time()}
                self.send({"type": "log", "job": id, "member": int(member), **frame})
        data, at = self.world.metrics.encode(), cursor["metrics"]
        if len(data) > at:
            cursor["metrics"] = len(data)
            records = [json.loads(line) for line in data[at:].decode().splitlines()]
            self.send({"type": "metrics", "job": id, "from": at, "to": len(data), "records": records})


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "fake_dlaas"}]


def _load_jupyter_server_extension(app: Any) -> None:
    app.web_app.settings["fake_world"] = World()
    base = url_path_join(app.web_app.settings["base_url"], "dlaas")
    routes = [
        (r"/pool", Pool),
        (r"/jobs", List),
        (r"/jobs/([^/]+)", Job),
        (r"/jobs/([^/]+)/([a-z]+)", Verb),
        (r"/stream", Stream),
        (r"/fake/quiet/(on|off)", Quiet),
    ]
    app.web_app.add_handlers(".*$", [(base + path, handler) for path, handler in routes])
    asyncio.get_event_loop_policy().get_event_loop().call_soon(
        lambda: asyncio.ensure_future(app.web_app.settings["fake_world"].run())
    )
