"""State diagram of a job in Mermaid, drawn from the state table.

`python -m tests.state_diagram` writes the document.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dlaas_server.core.model.states import NEXT

__all__ = ["PATH", "document"]

PATH: Final = Path(__file__).parent.parent / "server" / "states.md"
TEXT: Final = """# States of a job

Drawn from the table in [states.py](dlaas_server/core/model/states.py) by `python -m tests.state_diagram`; a test
compares the two. The label of an arrow lists the events that lead from one state to the other. An arrow from a state to
itself lists the events that leave the state as it is, most of them requests that the job fulfils later.

```mermaid
{diagram}
```
"""


def _diagram() -> str:
    """Return the Mermaid text, one arrow for each pair of states."""
    arrows = ["stateDiagram-v2", "  [*] --> QUEUED: submit"]
    for state, row in NEXT.items():
        events: dict[str, list[str]] = {}
        for event, target in row.items():
            events.setdefault(target.name, []).append(event.value)
        arrows += [f"  {state.name} --> {target}: {', '.join(names)}" for target, names in events.items()]
    arrows += [f"  {state.name} --> [*]" for state, row in NEXT.items() if not row]
    return "\n".join(arrows)


def document() -> str:
    """Return the text of `server/states.md`."""
    return TEXT.format(diagram=_diagram())


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
