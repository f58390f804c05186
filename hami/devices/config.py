"""The resolved configuration of one node's device plugin. `hami.plugin.settings` resolves it from flags, environment
and device configuration."""

from __future__ import annotations

from dataclasses import dataclass

from hami.codec.device_config import NvidiaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """Settings of one node. Names as in HAMi's device plugin v2.10; memory in MiB.

    *resource*: what the kubelet offers. *nvidia*: the section of the device configuration, with what flags and the
    node's entry override. *operating_mode*: ``hami-core`` or ``mig``. *hook_path*: host directory above ``vgpu``.
    *list_strategies*: ``envvar``, ``volume-mounts``, ``cdi-annotations``, ``cdi-cri``. *dev_root*: prefix of host
    device nodes. *aligned*: honor the kubelet's choice of cards (``enablegetpreferredallocation``). *log_level*:
    ``LIBCUDA_LOG_LEVEL``, empty for none. *register_format*: ``json`` or ``csv``. *publish_capacity*: what the
    status of the node shows, ``off``, ``totals`` or ``requests``. *allocation_mode*: ``device-plugin`` or ``dra``;
    ``auto`` only before the node was read. *claim_allocator*: who allocates claims in the mode ``dra``,
    ``kube-scheduler`` or ``hami``. *claimed_uuids*, *claimed_indexes*: the cards in the mode ``dra`` of a node where
    the others are in the mode ``device-plugin``.
    """

    node: str
    resource: str = "nvidia.com/gpu"
    nvidia: NvidiaConfig = NvidiaConfig()
    operating_mode: str = "hami-core"
    log_level: str = ""
    aligned: bool = False
    filtered_uuids: tuple[str, ...] = ()
    filtered_indexes: tuple[int, ...] = ()
    claimed_uuids: tuple[str, ...] = ()
    claimed_indexes: tuple[int, ...] = ()
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
    publish_capacity: str = "totals"
    allocation_mode: str = "device-plugin"
    claim_allocator: str = "kube-scheduler"
    kubelet_socket: str = "/var/lib/kubelet/device-plugins/kubelet.sock"
    socket_name: str = ""
    unregister_on_stop: bool = False

    @property
    def is_divided(self) -> bool:
        """Whether the allocation modes of the node have different cards."""
        return bool(self.claimed_uuids or self.claimed_indexes)

    @property
    def is_managed(self) -> bool:
        """Whether HAMi's scheduler allocates the claims for the devices, so the node registers them with it."""
        return self.allocation_mode == "dra" and self.claim_allocator == "hami"
