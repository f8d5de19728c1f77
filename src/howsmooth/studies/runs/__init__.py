"""What came of asks: kept in one file, read back as typed answers, summed up."""
