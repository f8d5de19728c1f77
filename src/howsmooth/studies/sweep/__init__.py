"""Many asks, one store: what is done where, and by whom."""
