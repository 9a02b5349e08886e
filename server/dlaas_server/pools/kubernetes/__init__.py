"""The pool on a Kubernetes cluster: jobs are objects of a namespace, guardians and learners are pods.

Only `api.py` imports the `kubernetes` package, when a connection is made: other pools never load it.
"""

from __future__ import annotations
