"""Learner of the contract tests: obeys commands on its control channel. Standard library only."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

root, member = Path(sys.argv[1]), sys.argv[2]
channel = socket.socket(socket.AF_UNIX)


def say(**fields: Any) -> None:
    channel.sendall(json.dumps(fields).encode() + b"\n")


def connect() -> None:
    """Connect to the guardian or agent, and repeat the state, as a real learner does."""
    global channel
    while True:
        channel = socket.socket(socket.AF_UNIX)
        try:
            channel.connect(f"/proc/self/fd/{folder}/guardian.sock")
            break
        except OSError:
            time.sleep(0.01)
    say(t="hello", member=member, **state)


def write(path: str, text: str) -> None:
    """Write a file as a whole, as a learner writes its result or a checkpoint."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}")
    part.write_text(text)
    part.rename(place)


def append(path: str, text: str) -> None:
    with (root / path).open("a") as file:
        file.write(text)


def obey(order: dict[str, Any]) -> None:
    match order["do"]:
        case "print":
            print(order["text"], flush=True)
        case "echo":
            say(t="echo", text=order["text"])
        case "set":
            state["set"] = order["text"]
        case "write":
            write(order["path"], order["text"])
            say(t=order.get("then", "wrote"), path=order["path"])
        case "append":
            append(order["path"], order["text"])
        case "read":
            place = root / order["path"]
            say(t="read", text=place.read_text() if place.exists() else None)
        case "environment":
            say(t="environment", values={name: os.environ.get(name) for name in order["names"]})
        case "child":
            child = subprocess.Popen(["sleep", "1000"], start_new_session=order["is_daemon"])
            say(t="child", pid=child.pid)
        case "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say(t="ignores")
        case "exit":
            write(f"learner-{member}/result.json", json.dumps({"code": order["code"]}))
            sys.exit(order["code"])


folder = os.open(root, os.O_RDONLY)
state: dict[str, Any] = {"arguments": sys.argv[3:]}
print(f"learner {member} begins", flush=True)
connect()
buffer = b""
while True:
    try:
        data = channel.recv(1 << 16)
    except ConnectionResetError:  # accepted by a guardian that was about to end
        data = b""
    if not data:
        channel.close()
        connect()
        continue
    *lines, buffer = (buffer + data).split(b"\n")
    for line in lines:
        obey(json.loads(line))
