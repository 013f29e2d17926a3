"""One module per recipe, found by its name."""
