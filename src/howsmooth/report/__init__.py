"""Results as pictures: charts, and the files they are written to."""
