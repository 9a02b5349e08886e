"""Entry point of `python -m jupyter_dlaas.cli`."""

from __future__ import annotations

import sys

from jupyter_dlaas.cli.main import main

__all__ = ["main"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
