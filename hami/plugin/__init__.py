"""The device plugin for NVIDIA cards: registers the node, serves the kubelet's device plugin API, releases node locks."""
