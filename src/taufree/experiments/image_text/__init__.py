"""Images and texts: two towers that are trained to find each other's matches, as CLIP is."""

RECIPES = {"clip": "clip"}
