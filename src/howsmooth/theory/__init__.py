"""What is proven: one function per theorem, and the inputs that attain them."""
