"""Program of a rendezvous store by the name that a guardian of a former release starts."""

from __future__ import annotations

import sys

from jupyter_dlaas.runtime.guardian.rendezvous_store import main

__all__ = ["main"]


if __name__ == "__main__":
    main(sys.argv[1:])
