"""Experiments that compare links: recipes, their training, and the report of a sweep."""

RECIPES = {"digits": "digits", "halves": "halves"}
