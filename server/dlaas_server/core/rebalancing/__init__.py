"""Rebalancing of a running pool: consolidation, migration, drain of nodes."""
