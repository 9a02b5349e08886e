"""Muri's scheduler and the ones it is compared with, by the rules of its simulator."""
