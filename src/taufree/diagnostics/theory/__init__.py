"""The closed forms of the paper, and their figures."""
