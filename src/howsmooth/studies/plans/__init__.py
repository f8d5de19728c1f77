"""What to ask: from a command, a file or the paper to asks that were checked."""
