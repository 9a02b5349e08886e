"""Scheduling of waiting gangs: order, fit, backfill, preemption, starvation guard."""
