"""Hosts of learner processes: the guardian's own machine, or agents with private directories."""
