"""Zygotes of a pool: preloaded processes from which guardians and learners are forked, so that they start at once."""
