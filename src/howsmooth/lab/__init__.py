"""The lab: why attention is not smooth, on one page, with one's own hands."""
