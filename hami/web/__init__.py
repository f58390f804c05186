"""HTTP: the routes that kube-scheduler and the API server call, and the server that answers them."""
