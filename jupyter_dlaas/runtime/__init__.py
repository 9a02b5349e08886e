"""Processes that run a job on its machine: zygote, guardian and learners. Standard library only.

The modules run in the interpreter of the user's job (Python 3.11 or newer), in which this package is not installed.
"""
