"""Selection of the place where a pool's jobs run: this machine or a Kubernetes cluster."""

from __future__ import annotations
