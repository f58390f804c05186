"""Measures the targets of the design: ``python -m benchmarks``.

The scheduler runs as a real process and is called like kube-scheduler and the API server call it. Results that are
compared come from the same run. These are not tests: a missed target is a row of the table.
"""
