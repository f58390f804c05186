"""A kind cluster on a machine without an image registry: everything comes from Debian packages and Go modules.

``python -m testing.kind_cluster up`` starts Docker and the cluster ``hami-e2e`` with a control plane and a worker, and
prints what a shell has to export to use them; ``down`` removes the cluster and ends Docker. The first run builds
programs and images into ``${XDG_CACHE_HOME:-~/.cache}/hami``, which takes about ten minutes on two cores. Needs root,
and Debian's packages docker.io, iptables, iproute2 and debootstrap.
"""
