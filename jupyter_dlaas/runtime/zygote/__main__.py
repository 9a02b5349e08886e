"""Program of a zygote by the name that an engine of a former release starts."""

from __future__ import annotations

import sys

from jupyter_dlaas.runtime.zygote.zygote import main

__all__ = ["main"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
