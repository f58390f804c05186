"""Nodes, pods, quotas and reservations in memory. No network."""
