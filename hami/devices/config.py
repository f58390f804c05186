"""The resolved configuration of one node's device plugin. `hami.plugin.settings` resolves it from flags, environment
and device configuration."""

from __future__ import annotations

from dataclasses import dataclass

from hami.codec.device_config import MigAllowance


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """Settings of one node. Names as in HAMi's device plugin v2.10; memory in MiB.

    *operating_mode*: ``hami-core`` or ``mig``. *split_count*: maximum containers per card. *memory_scaling* above 1
    overcommits memory. *hook_path*: host directory above ``vgpu``. *list_strategies*: ``envvar``, ``volume-mounts``,
    ``cdi-annotations``, ``cdi-cri``. *dev_root*: prefix of host device nodes. *aligned*: honor the kubelet's choice of
    cards (``enablegetpreferredallocation``). *log_level*: ``LIBCUDA_LOG_LEVEL``, empty for none. *register_format*:
    ``json`` or ``csv``.
    """

    node: str
    resource: str = "nvidia.com/gpu"
    operating_mode: str = "hami-core"
    split_count: int = 10
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    preconfigured_memory: int = 0
    log_level: str = ""
    disable_core_limit: bool = False
    compute_by: str = "events"
    numa_topology: bool = False
    aligned: bool = False
    filtered_uuids: tuple[str, ...] = ()
    filtered_indexes: tuple[int, ...] = ()
    mig_allowlist: tuple[MigAllowance, ...] = ()
    hook_path: str = "/usr/local"
    list_strategies: tuple[str, ...] = ("envvar",)
    id_strategy: str = "uuid"
    pass_device_specs: bool = False
    driver_root: str = "/"
    dev_root: str = "/"
    cdi_prefix: str = "cdi.k8s.io/"
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    imex_channels: tuple[int, ...] = ()
    topology_score: bool = False
    register_format: str = "json"
    kubelet_socket: str = "/var/lib/kubelet/device-plugins/kubelet.sock"
    socket_name: str = ""
    unregister_on_stop: bool = False
