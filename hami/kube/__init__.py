"""The Kubernetes API: client, reflector, events, Lease. The only importer of ``kubernetes``."""
