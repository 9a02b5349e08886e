"""Data of a training: sources, sharding over learners, position, batch sizes."""
