"""Graphs: GRACE on CiteSeer."""
