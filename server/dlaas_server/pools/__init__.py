"""Pool adapters: each hides one backend (this machine, Kubernetes, a simulation) behind one protocol."""

from __future__ import annotations
