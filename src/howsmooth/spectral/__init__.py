"""HOW we measure: operator norms without matrices, with error bars."""
