"""Data-parallel training in a gang of changing membership."""
