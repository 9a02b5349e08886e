"""The environment of a learner's program: import hooks, seeds, memory, tracebacks."""
