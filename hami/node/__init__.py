"""Everything that a container on the node is given: `grant_builder` makes its environment, mounts and devices.

`grant` says what that is, `limits` and `host` write its files, `cdi` and `container_specs` its CDI specifications,
`dynamic_mig` its MIG instances. `pods` knows the pods of the node.
"""
