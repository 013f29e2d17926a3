"""Graphs: GRACE on CiteSeer."""

RECIPES = {"citeseer": "citeseer"}
