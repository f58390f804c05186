"""The scheduler program: admits pods, chooses their node and devices, binds them, and repairs annotations."""
