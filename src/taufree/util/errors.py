"""Errors whose message is one sentence for the user."""

from __future__ import annotations


class BadInputError(ValueError):
    """What the user asked for cannot be done."""


class MissingPackageError(ModuleNotFoundError, BadInputError):
    """A package is not installed; the message says how to install it, see :mod:`taufree.util.optional`."""
