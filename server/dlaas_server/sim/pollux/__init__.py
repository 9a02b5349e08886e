"""Pollux' workload and rules, by its simulator."""
