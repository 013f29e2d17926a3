"""Tables, curves, galleries and the page of a sweep."""
