"""Recommendation: DCRec on sequences of items."""

RECIPES = {"dcrec": "dcrec"}
