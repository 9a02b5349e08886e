"""Pool adapters: each hides one outside thing (this machine, Kubernetes, a simulation) behind one Protocol."""

from __future__ import annotations
