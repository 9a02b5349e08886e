"""Spot jobs: capacity lent to them, and its reclaim."""
