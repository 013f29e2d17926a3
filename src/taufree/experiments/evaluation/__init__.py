"""How good trained vectors are."""
