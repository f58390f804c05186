"""HTTP: the server for the webhook and the extender, TLS, and plain pages such as metrics."""
