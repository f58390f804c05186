"""The resolved configuration of one node's device plugin. `hami.plugin.settings` resolves it from flags, environment
and device configuration.

A field's annotation has its flag, whose help documents it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hami.codec.device_config import NvidiaConfig, parse_resource_name
from hami.codec.policies import parse_list
from hami.errors import MalformedInput
from hami.runtime.options import File, Flag, Value, choice
from hami.vendors.inventory import CLAIMS

AUTO = "auto"
OPERATING_MODES = ("hami-core", "mig")
DEVICE_PLUGIN, DRA = "device-plugin", CLAIMS
NODE_ALLOCATION_MODES = (AUTO, DEVICE_PLUGIN, DRA)
HAMI, KUBE_SCHEDULER = "hami", "kube-scheduler"
"""Who allocates the claims for the devices of a node."""
MEMORY_WAYS = MEMORY_BY_BEST, LIMITER, BOTH, MEMORY_BY_DRIVER = (
    "auto",
    "limiter",
    "both",
    "driver",
)
"""What limits memory: the limiter, and the driver where it can, or in any case."""
CAPACITY_MODES = OFF, TOTALS, REQUESTS = ("off", "totals", "requests")
LIST_STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")


def _parse_list_strategies(text: str) -> tuple[str, ...]:
    """One or several strategies, separated by commas. Raises: MalformedInput."""
    words = tuple(dict.fromkeys(parse_list(text) or ()))
    if not words or not set(words) <= set(LIST_STRATEGIES):
        raise MalformedInput(
            "list strategy", text, f"expected a list of {', '.join(LIST_STRATEGIES)}"
        )
    return words


def _parse_channels(text: str) -> tuple[int, ...]:
    """IMEX channels: none, or channel 0, the only one that NVIDIA allows. Raises: MalformedInput."""
    if (inner := text.strip().removeprefix("[").removesuffix("]").strip()) not in ("", "0"):
        raise MalformedInput("IMEX channels", text, "expected nothing or 0")
    return (0,) if inner else ()


@dataclass(frozen=True, kw_only=True)
class SharedDevices:
    """Which devices the node offers, and how they are shared."""

    resource: Annotated[
        str,
        Value("name", parse_resource_name),
        Flag("--resource-name", "The resource that the kubelet offers."),
    ] = "nvidia.com/gpu"
    nvidia: NvidiaConfig = NvidiaConfig()
    operating_mode: Annotated[
        str,
        choice("mode", *OPERATING_MODES),
        Flag(
            "--operating-mode",
            f"{' or '.join(OPERATING_MODES)}: the limiter shares devices, or MIG instances are "
            "created as pods need them.",
        ),
    ] = "hami-core"
    aligned: bool = False
    filtered_uuids: tuple[str, ...] = ()
    filtered_indexes: tuple[int, ...] = ()
    claimed_uuids: tuple[str, ...] = ()
    claimed_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContainerDevices:
    """Containers: the form in which they get devices, and files of the host that they get with them."""

    list_strategies: Annotated[
        tuple[str, ...],
        Value("strategy", _parse_list_strategies),
        Flag(
            "--device-list-strategy",
            "How devices are passed to the container runtime: some of "
            f"{', '.join(LIST_STRATEGIES)}, separated by commas or in several flags.",
            environment="DEVICE_LIST_STRATEGY",
            keys="deviceListStrategy",
            repeated=True,
        ),
    ] = ("envvar",)
    id_strategy: Annotated[
        str,
        choice("strategy", "uuid", "index"),
        Flag(
            "--device-id-strategy",
            "How the container runtime identifies devices: uuid or index.",
            environment="DEVICE_ID_STRATEGY",
            keys="deviceIDStrategy",
        ),
    ] = "uuid"
    pass_device_specs: Annotated[
        bool,
        Flag(
            "--pass-device-specs",
            "Also pass device nodes.",
            environment="PASS_DEVICE_SPECS",
            keys="passDeviceSpecs",
        ),
    ] = False
    gdrcopy: Annotated[
        bool,
        Flag(
            "--gdrcopy-enabled",
            "Enable GDRCopy in containers.",
            environment="GDRCOPY_ENABLED",
            keys="gdrcopyEnabled",
        ),
    ] = False
    gds: Annotated[
        bool,
        Flag(
            "--gds-enabled",
            "Enable GPUDirect Storage in containers.",
            environment="GDS_ENABLED",
            keys="gdsEnabled",
        ),
    ] = False
    mofed: Annotated[
        bool,
        Flag(
            "--mofed-enabled",
            "Enable Mellanox OFED in containers.",
            environment="MOFED_ENABLED",
            keys="mofedEnabled",
        ),
    ] = False
    imex_channels: Annotated[
        tuple[int, ...],
        Value("ids", _parse_channels),
        Flag(
            "--imex-channel-ids",
            "IMEX channels for containers: none or 0.",
            environment="IMEX_CHANNEL_IDS",
            keys="channelIDs",
        ),
    ] = ()
    cdi_prefix: Annotated[
        str,
        Flag(
            "--cdi-annotation-prefix",
            "Prefix of the annotation of cdi-annotations.",
            environment="CDI_ANNOTATION_PREFIX",
            keys="cdiAnnotationPrefix",
        ),
    ] = "cdi.k8s.io/"
    log_level: str = ""
    hook_path: Annotated[
        File,
        Flag(
            "--hook-path",
            "The host's directory above vgpu, which holds the limiter.",
            environment="HOOK_PATH",
        ),
    ] = "/usr/local"
    driver_root: Annotated[
        File,
        Flag(
            "--nvidia-driver-root",
            "Root of the host's driver installation.",
            environment="NVIDIA_DRIVER_ROOT",
            keys="nvidiaDriverRoot",
        ),
    ] = "/"
    dev_root: Annotated[
        File,
        Flag(
            "--dev-root",
            "Root of the driver's /dev on the host; without it, the driver root.",
            also="--nvidia-dev-root",
            environment="NVIDIA_DEV_ROOT",
            keys="nvidiaDevRoot",
        ),
    ] = "/"
    memory_by: Annotated[
        str,
        choice("way", *MEMORY_WAYS),
        Flag(
            "--memory-by",
            "What limits device memory: limiter; both (the limiter, and NVIDIA's driver 615 or "
            "later where it can, by control group); driver (as both, but a container does not "
            "start where the driver cannot); or auto (both if --cgroup-root is given and the driver "
            "can, else limiter). The driver's limit needs containers that get their devices "
            "when they start, and no card has been asked yet.",
            environment="MEMORY_BY",
        ),
    ] = MEMORY_BY_BEST
    cgroup_root: Annotated[
        File,
        Flag(
            "--cgroup-root",
            "Where this process sees the node's control groups of version 2, which it may change. With it, "
            "the driver's limits of running containers are measured, repaired and resized.",
            environment="CGROUP_ROOT",
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """The registration of devices with the kubelet and on the node."""

    kubelet_socket: Annotated[
        File,
        Flag(
            "--kubelet-socket",
            "The kubelet's socket; the plugin's own is beside it. Empty: devices are only "
            "registered with the node.",
            environment="KUBELET_SOCKET",
        ),
    ] = "/var/lib/kubelet/device-plugins/kubelet.sock"
    socket_name: Annotated[
        str,
        Flag(
            "--socket-name",
            "Name of the plugin's socket; without it, nvidia-<resource>.sock, as in NVIDIA's plugin.",
        ),
    ] = ""
    allocation_mode: Annotated[
        str,
        choice("allocation_mode", *NODE_ALLOCATION_MODES),
        Flag(
            "--allocation-mode",
            "In which allocation mode pods get the devices of this node: device-plugin (HAMi's "
            "scheduler and the kubelet's device plugins), dra (claims of Dynamic Resource "
            "Allocation, which needs Kubernetes 1.36), or auto: as the node's label "
            "hami.io/allocation-mode says, without it device-plugin.",
            environment="ALLOCATION_MODE",
        ),
    ] = "device-plugin"
    claim_allocator: Annotated[
        str,
        choice("allocator", KUBE_SCHEDULER, HAMI),
        Flag(
            "--claim-allocator",
            "Who allocates the claims in the allocation mode dra: kube-scheduler, or hami "
            "(HAMi's scheduler, with --dra=allocate). With hami the node also registers its "
            "devices with that scheduler, and a taint keeps kube-scheduler from giving them out.",
            environment="CLAIM_ALLOCATOR",
        ),
    ] = "kube-scheduler"
    register_format: Annotated[
        str,
        choice("format", "json", "csv"),
        Flag(
            "--register-format",
            "json; csv for schedulers of HAMi v2.4 to v2.7, whose handshakes are then answered.",
        ),
    ] = "json"
    publish_capacity: Annotated[
        str,
        choice("mode", *CAPACITY_MODES),
        Flag(
            "--publish-capacity",
            "What the capacity of the node shows: totals (memory and cores of its healthy "
            "devices together, as nvidia.com/total-gpumem and nvidia.com/total-gpucores, for "
            "dashboards), requests (also nvidia.com/gpumem, nvidia.com/gpumem-percentage and "
            "nvidia.com/gpucores, or with --claim-allocator=hami hami.io/claim, for autoscalers "
            "and topology-aware scheduling of Kueue; the kubelet enforces these), or off.",
        ),
    ] = "totals"
    gpu_labels: Annotated[
        bool,
        Flag(
            "--gpu-labels",
            "Label the node with its GPUs (nvidia.com/gpu.count) and the slots of each "
            "(nvidia.com/gpu.replicas), by which OpenCost and Kubecost price it. Leave it to GPU "
            "feature discovery where that runs.",
        ),
    ] = False
    topology_score: Annotated[
        bool,
        Flag(
            "--topology-score",
            "Register scores for pairs of devices by their links.",
            environment="ENABLE_TOPOLOGY_SCORE",
        ),
    ] = False
    unregister_on_stop: Annotated[
        bool,
        Flag(
            "--unregister-on-stop",
            "Unregister the devices when the plugin stops. Running pods keep theirs.",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class PluginConfig(SharedDevices, ContainerDevices, Registration):
    """Settings of one node. Names as in HAMi's device plugin v2.10."""

    node: Annotated[
        str, Flag("--node-name", "The name of this node.", environment="NodeName NODE_NAME")
    ]

    @property
    def is_divided(self) -> bool:
        """Whether the allocation modes of the node have different cards."""
        return bool(self.claimed_uuids or self.claimed_indexes)

    @property
    def is_managed(self) -> bool:
        """Whether HAMi's scheduler allocates the claims for the devices, so the node registers them with it."""
        return self.allocation_mode == "dra" and self.claim_allocator == "hami"
