"""`python -m dlaas_server.engine --pool-dir DIR`: the engine of one pool, in the foreground (see `service`)."""

from __future__ import annotations

import gc
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Import and run the engine. What the imports create stays, so it is not searched for garbage, then or later."""
    gc.disable()
    from dlaas_server.engine import service

    gc.freeze()
    gc.enable()
    return service.main(argv)


if __name__ == "__main__":
    raise SystemExit(main())
