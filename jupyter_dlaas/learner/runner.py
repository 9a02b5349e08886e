"""The learner's entry point under the name that guardians of earlier releases start."""

from __future__ import annotations

import sys

from jupyter_dlaas.learner.process.main import main

__all__ = ["main"]


if __name__ == "__main__":
    main(sys.argv[1:])
