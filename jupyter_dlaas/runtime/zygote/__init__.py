"""The zygotes of a pool: processes that others are forked from, to start at once."""
