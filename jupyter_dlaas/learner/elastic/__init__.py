"""Data-parallel training of a group of learners that changes its size."""
