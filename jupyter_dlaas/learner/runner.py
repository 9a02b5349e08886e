"""Program of a learner by the name that a guardian of a former release starts."""

from __future__ import annotations

import sys

from jupyter_dlaas.learner.process.main import main

__all__ = ["main"]


if __name__ == "__main__":
    main(sys.argv[1:])
