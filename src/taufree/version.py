"""The version of this package, for the package, its build and the results."""

__version__ = "0.2.0"
