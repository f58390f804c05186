"""The scheduler program: admits pods, picks their node and devices, binds them, and keeps annotations true over time."""
