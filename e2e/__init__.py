"""The system as a user meets it: real etcd, kube-apiserver and kube-scheduler, fake nodes, our processes.

Nothing in ``hami/`` imports from here. The harness (``cluster``, ``scheduler``, ``nodes``, ``agent``, ``audit``,
``kube``, ``binaries``) serves the end-to-end tests, the demo and the benchmarks alike.
"""
