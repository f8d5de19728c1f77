"""WHAT we study: maps on sequences of tokens, with their Jacobians."""
