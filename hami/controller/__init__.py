"""Keeps the cluster's annotations true: handshakes, stuck allocations, locks left behind, pods that slipped past."""
