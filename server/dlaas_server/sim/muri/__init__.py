"""Muri's scheduler and its rivals, by the rules of its simulator."""
