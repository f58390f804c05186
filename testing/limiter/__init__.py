"""Builds the limiter, and runs clients of it on a fake driver."""
