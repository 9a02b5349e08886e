"""Entry point of a rendezvous store under the module name that guardians of earlier releases start."""

from __future__ import annotations

import sys

from jupyter_dlaas.runtime.guardian.rendezvous_store import main

__all__ = ["main"]


if __name__ == "__main__":
    main(sys.argv[1:])
