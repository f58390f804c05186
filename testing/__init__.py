"""What unit tests, end-to-end tests and benchmarks share; nothing in ``hami/`` imports from here.

- programs: ``binaries`` finds or builds them; ``processes`` starts, ``reaper`` ends them, ``interrupts`` after a signal
- clusters: ``cluster`` of local processes, ``kind`` and ``kind_cluster``, ``conformance``; ``kube`` talks to each
- nodes: ``nodes`` and ``vendor_nodes`` are fake, with the device plugins of ``agent``; ``realnode`` has a kubelet
- HAMi in a cluster: ``scheduler``, ``dashboard``, ``device_plugin``, ``monitor``, ``helm_chart``, ``takeover``
- scenes of end-to-end tests: ``sandbox``, ``pods``, ``claims``, ``resizes``, ``priorities``; ``audit`` is the judge
- unit tests: ``builders`` of objects and records, ``world`` (replicas, a clock), ``fake_cluster``, fakes of NVML
- ``limiter``: its builds, and clients on a fake driver
"""
