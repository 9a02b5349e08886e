"""Version of the package, for modules that must not import the package's front door."""

__all__ = ["__version__"]

__version__ = "0.1.0"
