"""The dashboard: pages to look at, made of the scheduler's cache. It changes nothing in the cluster."""
