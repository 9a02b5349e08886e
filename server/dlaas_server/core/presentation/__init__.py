"""Presentation of jobs: what clients see of them, and why they wait."""
