"""The dashboard, a program of its own: pages to look at. It changes nothing in the cluster."""
