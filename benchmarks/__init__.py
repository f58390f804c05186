"""The targets of the design, measured: ``python -m benchmarks``.

The scheduler under test is the real process, asked as kube-scheduler and the API server ask it. Where two things are
compared they are measured in the same run. Nothing here is a test: a missed target is a row in a table.
"""
