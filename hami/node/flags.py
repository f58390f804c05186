"""Flags that all programs on a node have."""

from __future__ import annotations

from hami.runtime.options import Flag

MOCK_DEVICES = Flag(
    "--mock-devices",
    "Use the devices in this file (YAML) instead of the driver's.",
    environment="MOCK_DEVICES",
)


def driver_root(program: str) -> Flag:
    """Returns the flag for the path of the driver. *program*: this one, in the help."""
    return Flag(
        "--driver-root-ctr-path",
        f"Path of the host's driver root in this container; / for a {program} that runs on the "
        "host.",
        also="--container-driver-root",
        environment="DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT",
        keys="containerDriverRoot",
    )
