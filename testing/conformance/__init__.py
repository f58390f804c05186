"""Kubernetes' own end-to-end tests, with a slice of a GPU in every pod.

They are those of scheduling and of some controllers, and run on fake nodes. What passes without
HAMi must pass with it: ``python -m testing.conformance``.
"""
