"""Where tokens may lie: sets of inputs, one in each file."""
