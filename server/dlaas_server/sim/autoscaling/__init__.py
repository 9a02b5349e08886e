"""Experiments with the autoscaler on measured scaling curves."""
