"""One file for each way from scores to weights: attention that is not plain softmax."""
