"""End-to-end tests: real etcd, kube-apiserver and kube-scheduler, fake nodes, and the processes of HAMi.

The demo (``demo``) and the program for a real GPU (``gpu``) are beside them, the harness is in ``testing/``.
"""
