"""Version of the package, for modules that must not import the package itself."""

__all__ = ["__version__"]

__version__ = "0.1.0"
