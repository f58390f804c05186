"""The decision: what a pod asks, whether and how it fits, which node it gets. No I/O, no clock, no log."""
