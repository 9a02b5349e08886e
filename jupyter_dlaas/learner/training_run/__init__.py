"""The run of a training: batches, checkpoints, halts and membership changes."""
