"""Capture of a training cell as a program of its own: slice, checks, rendering. Pure."""
