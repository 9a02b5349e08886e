"""A simulated pool for tests: scripted jobs on a virtual clock."""
