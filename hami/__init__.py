"""HAMi in Python: pods of one Kubernetes cluster share its accelerators."""

__version__ = "0.1.0"
