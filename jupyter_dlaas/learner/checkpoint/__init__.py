"""Contents and files of a checkpoint: user state, namespace, object graph."""
