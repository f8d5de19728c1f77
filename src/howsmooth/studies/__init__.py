"""What we run: questions as data, many of them at once, and what came of them."""
