"""Start of processes: directly, or as forks of processes that have already imported their modules."""
