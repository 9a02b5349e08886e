"""Jupyter Server extension: handlers, relay to engines, jobs from notebooks."""
