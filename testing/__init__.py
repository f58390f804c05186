"""What unit tests, end-to-end tests and benchmarks share; nothing in ``hami/`` imports from here.

- programs: ``binaries`` finds or builds them; ``processes`` starts, ``reaper`` ends them, ``interrupts`` after a signal
- clusters: ``cluster`` of local processes, ``kind`` and ``kind_cluster``, ``conformance``; ``kube`` talks to each
- nodes: ``nodes`` and ``vendor_nodes`` are fake, with the device plugins of ``agent``; ``realnode`` has a kubelet
- HAMi in a cluster: ``scheduler``, ``dashboard``, ``device_plugin``, ``monitor``, ``helm_chart``, ``takeover``
- scenes of end-to-end tests: ``sandbox``, ``pods``, ``claims``, ``resizes``, ``priorities``; ``audit`` is the judge
- unit tests: ``cases`` of a table; ``builders`` of objects and records; ``stores``, and ``replicas`` with a clock on
  ``fake_cluster``; ``seeds`` for random ones; ``plugin_stage``, ``claim_stage`` and ``monitor_stage`` for programs of a
  node, with fakes of NVML and of the kubelet; ``fake_api`` and ``records`` for what people ask; ``vendor_rows`` for
  what pods ask
- ``limiter``: its builds, and clients on a fake driver
"""
