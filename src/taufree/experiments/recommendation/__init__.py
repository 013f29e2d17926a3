"""Recommendation: DCRec on sequences of items."""
