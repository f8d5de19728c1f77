"""What is proven about attention that is not plain softmax: one file for each mechanism."""
