"""Metrics: what the cluster shares out, and how the scheduler itself fares."""
