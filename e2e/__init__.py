"""End-to-end tests: real etcd, kube-apiserver and kube-scheduler, fake nodes, and the processes of HAMi.

Nothing in ``hami/`` imports from here. The tests, the demo and the benchmarks share the harness (``cluster``,
``scheduler``, ``nodes``, ``agent``, ``audit``, ``kube``, ``binaries``).
"""
