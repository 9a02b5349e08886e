"""Elasticity: how many learners a job gets, by measured throughput."""
