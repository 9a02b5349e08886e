"""Entry point of a guardian under the module name that engines of earlier releases start."""

from __future__ import annotations

import sys

from jupyter_dlaas.runtime.guardian.entrypoint import main

__all__ = ["main"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
