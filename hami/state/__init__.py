"""Nodes, pods, quotas and reservations in memory. It makes no calls."""
