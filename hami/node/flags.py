"""Flags that all programs on a node have."""

from __future__ import annotations

from hami.runtime.options import COUNT, FILE, Flag

MOCK_DEVICES = Flag(
    "--mock-devices",
    FILE,
    "Use the devices in this file (YAML) instead of the driver's.",
    environment=("MOCK_DEVICES",),
)
KUBE_TIMEOUT = Flag(
    "--kube-timeout",
    COUNT,
    "Seconds until a request to the API server times out; 0 for the built-in timeout.",
)


def driver_root(program: str) -> Flag:
    """Returns the flag for the path of the driver. *program*: this one, in the help."""
    return Flag(
        "--driver-root-ctr-path",
        FILE,
        "Path of the host's driver root in this container; / for a "
        f"{program} that runs on the host.",
        "driver_root_in_container",
        also=("--container-driver-root",),
        environment=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        keys=("containerDriverRoot",),
    )
