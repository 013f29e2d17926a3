"""One run: model, link and optimizer, from the first epoch to the line of its result."""
