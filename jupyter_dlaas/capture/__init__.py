"""Capture of a training cell as a separate program: program slice, checks, rendering. Pure."""
