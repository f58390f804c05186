"""The device plugin for NVIDIA cards: registers the node and serves the kubelet's device plugin API."""
