"""How bad it gets: ascent on the local constant."""
