"""What is proven: one function per theorem, and the inputs that attain them.

Theorems compute in float64 on the CPU, wherever a map lives; inputs come back on its device and in its dtype.
"""
