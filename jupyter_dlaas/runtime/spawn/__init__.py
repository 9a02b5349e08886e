"""Start of processes: plain, or as forks of processes that have imported already."""
