"""The flags of the device plugin, each with the environment variables and keys that set the same field."""

from __future__ import annotations

from hami.codec.device_config import parse_resource_name
from hami.codec.policies import parse_list
from hami.devices.registration import DRA, HAMI, KUBE_SCHEDULER
from hami.errors import MalformedInput
from hami.node.flags import KUBE_TIMEOUT, MOCK_DEVICES, driver_root
from hami.runtime.options import (
    ADDRESS,
    BOOLEAN,
    FACTOR,
    FILE,
    STRING,
    Flag,
    Groups,
    Value,
    choice,
    whole_number,
)

NODE_CONFIG_FILE = "/config/config.json"
OPERATING_MODES = ("hami-core", "mig")
ALLOCATE_MODES = AUTO, START, ADMISSION = ("auto", "start", "admission")
DEVICE_PLUGIN = "device-plugin"
NODE_ALLOCATION_MODES = (AUTO, DEVICE_PLUGIN, DRA)
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


def _parse_discovery(text: str) -> str:
    """The strategy that discovers devices; all use NVML. Raises: MalformedInput."""
    if text not in ("auto", "nvml"):
        raise MalformedInput(
            "discovery strategy",
            text,
            "expected auto or nvml: Tegra has no device memory to share; "
            "use NVIDIA's device plugin for it",
        )
    return text


NODE = (
    Flag(
        "--node-name",
        STRING,
        "The name of this node.",
        "node",
        environment=("NodeName", "NODE_NAME"),
    ),
    Flag(
        "--config-file",
        FILE,
        "The device configuration (YAML), the same as the scheduler's; without it, the chart's "
        "applies. Its section flags, which NVIDIA's plugin defines, is read, too.",
        "device_config_file",
        also=("--device-config-file",),
        environment=("CONFIG_FILE",),
    ),
    Flag(
        "--node-config-file",
        FILE,
        "Settings of single nodes (JSON): the entries with this node's name override "
        f"everything else. Without the flag, {NODE_CONFIG_FILE} if it exists.",
        environment=("NODE_CONFIG_FILE",),
    ),
    MOCK_DEVICES,
)
SHARING = (
    Flag(
        "--resource-name",
        Value("name", parse_resource_name),
        "The resource that the kubelet offers.",
        "resource",
    ),
    Flag(
        "--device-split-count",
        whole_number(1),
        "Containers that may share a device.",
        environment=("DEVICE_SPLIT_COUNT",),
    ),
    Flag(
        "--device-memory-scaling",
        FACTOR,
        "Ratio of the memory that can be allocated to a device's memory; above 1, "
        "pods may together be given more than it has: nothing moves to host memory, and a program gets the driver's "
        "out-of-memory error when the device is full.",
        environment=("DEVICE_MEMORY_SCALING",),
    ),
    Flag(
        "--device-cores-scaling",
        FACTOR,
        "Ratio of the cores that can be allocated to a device's cores.",
        "device_core_scaling",
        environment=("DEVICE_CORES_SCALING",),
    ),
    Flag(
        "--disable-core-limit",
        BOOLEAN,
        "Do not limit the cores that containers use.",
        environment=("DISABLE_CORE_LIMIT",),
    ),
    Flag(
        "--operating-mode",
        choice("mode", *OPERATING_MODES),
        f"{' or '.join(OPERATING_MODES)}: the limiter shares "
        "devices, or MIG instances are created as pods need them.",
    ),
    Flag(
        "--mig-strategy",
        choice("strategy", "none", "single", "mixed"),
        "none, single or mixed: offer existing "
        "MIG instances to all pods, under the resource's name or as nvidia.com/mig-<profile>.",
        environment=("MIG_STRATEGY",),
        keys=("migStrategy",),
    ),
)
CONTAINERS = (
    Flag(
        "--allocate",
        choice("mode", *ALLOCATE_MODES),
        "When a container gets its devices: start "
        "(by a CDI specification that is written when it starts, without a node lock), admission (when the kubelet "
        "admits the pod), or auto: start if runtime and kubelet have CDI switched on and --cdi-root is writable.",
        environment=("ALLOCATE_MODE",),
    ),
    Flag(
        "--device-list-strategy",
        Value("strategy", _parse_list_strategies),
        "How devices are passed to the container "
        f"runtime: some of {', '.join(LIST_STRATEGIES)}, separated by commas or in several flags.",
        "list_strategies",
        environment=("DEVICE_LIST_STRATEGY",),
        keys=("deviceListStrategy",),
        repeated=True,
    ),
    Flag(
        "--device-id-strategy",
        choice("strategy", "uuid", "index"),
        "How the container runtime identifies devices: uuid or index.",
        "id_strategy",
        environment=("DEVICE_ID_STRATEGY",),
        keys=("deviceIDStrategy",),
    ),
    Flag(
        "--pass-device-specs",
        BOOLEAN,
        "Also pass device nodes.",
        environment=("PASS_DEVICE_SPECS",),
        keys=("passDeviceSpecs",),
    ),
    Flag(
        "--gdrcopy-enabled",
        BOOLEAN,
        "Enable GDRCopy in containers.",
        "gdrcopy",
        environment=("GDRCOPY_ENABLED",),
        keys=("gdrcopyEnabled",),
    ),
    Flag(
        "--gds-enabled",
        BOOLEAN,
        "Enable GPUDirect Storage in containers.",
        "gds",
        environment=("GDS_ENABLED",),
        keys=("gdsEnabled",),
    ),
    Flag(
        "--mofed-enabled",
        BOOLEAN,
        "Enable Mellanox OFED in containers.",
        "mofed",
        environment=("MOFED_ENABLED",),
        keys=("mofedEnabled",),
    ),
    Flag(
        "--imex-channel-ids",
        Value("ids", _parse_channels),
        "IMEX channels for containers: none or 0.",
        "imex_channels",
        environment=("IMEX_CHANNEL_IDS",),
        keys=("channelIDs",),
    ),
    Flag(
        "--imex-required",
        BOOLEAN,
        "Fail at startup if the host lacks those channels.",
        environment=("IMEX_REQUIRED",),
        keys=("required",),
    ),
    Flag(
        "--cdi-annotation-prefix",
        STRING,
        "Prefix of the annotation of cdi-annotations.",
        "cdi_prefix",
        environment=("CDI_ANNOTATION_PREFIX",),
        keys=("cdiAnnotationPrefix",),
    ),
    Flag(
        "--cdi-root",
        FILE,
        "The host's directory for CDI specifications of containers and, with a cdi strategy, of "
        "devices; empty if another program writes the latter: then containers get their devices at admission.",
        environment=("CDI_ROOT",),
    ),
    Flag(
        "--nvidia-cdi-hook-path",
        FILE,
        "The host's nvidia-ctk or nvidia-cdi-hook, which the specifications name as hook.",
        "cdi_hook",
        also=("--nvidia-ctk-path",),
        environment=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        keys=("nvidiaCTKPath", "nvidiaCDIHookPath"),
    ),
)
PATHS = (
    Flag(
        "--hook-path",
        FILE,
        "The host's directory above vgpu, which holds the limiter.",
        environment=("HOOK_PATH",),
    ),
    Flag(
        "--library-source",
        FILE,
        "Directory with the limiter's files, which are copied to the host at startup, once "
        "they have the checksums in its file SHA256SUMS; running containers keep theirs. Without it, they must be "
        "there already.",
        environment=("LIBRARY_SOURCE",),
    ),
    Flag(
        "--nvidia-driver-root",
        FILE,
        "Root of the host's driver installation.",
        "driver_root",
        environment=("NVIDIA_DRIVER_ROOT",),
        keys=("nvidiaDriverRoot",),
    ),
    Flag(
        "--dev-root",
        FILE,
        "Root of the driver's /dev on the host; without it, the driver root.",
        also=("--nvidia-dev-root",),
        environment=("NVIDIA_DEV_ROOT",),
        keys=("nvidiaDevRoot",),
    ),
    driver_root("plugin"),
    Flag(
        "--kubelet-socket",
        FILE,
        "The kubelet's socket; the plugin's own is beside it. Empty: devices are only "
        "registered with the node.",
        environment=("KUBELET_SOCKET",),
    ),
    Flag(
        "--socket-name",
        STRING,
        "Name of the plugin's socket; without it, nvidia-<resource>.sock, as in NVIDIA's plugin.",
    ),
)
REGISTRATION = (
    Flag(
        "--allocation-mode",
        choice("allocation_mode", *NODE_ALLOCATION_MODES),
        "In which allocation mode pods get the devices of this node: device-plugin (HAMi's "
        "scheduler and the kubelet's device plugins), dra (claims of Dynamic Resource Allocation, which needs "
        "Kubernetes 1.36), or auto: as the node's label hami.io/allocation-mode says, without it device-plugin.",
        environment=("ALLOCATION_MODE",),
    ),
    Flag(
        "--claim-allocator",
        choice("allocator", KUBE_SCHEDULER, HAMI),
        "Who allocates the claims in the allocation mode dra: "
        "kube-scheduler, or hami (HAMi's scheduler, with --dra=allocate). With hami the node also registers its "
        "devices with that scheduler, and a taint keeps kube-scheduler from giving them out.",
        environment=("CLAIM_ALLOCATOR",),
    ),
    Flag(
        "--register-format",
        choice("format", "json", "csv"),
        "json; csv for schedulers of HAMi v2.4 to v2.7, whose handshakes are then answered.",
    ),
    Flag(
        "--publish-capacity",
        choice("mode", *CAPACITY_MODES),
        "What the capacity of the node shows: totals (memory "
        "and cores of its healthy devices together, as nvidia.com/total-gpumem and nvidia.com/total-gpucores, for "
        "dashboards), requests (also nvidia.com/gpumem, nvidia.com/gpumem-percentage and nvidia.com/gpucores, or with "
        "--claim-allocator=hami hami.io/claim, for autoscalers and topology-aware scheduling of Kueue; the kubelet "
        "enforces these), or off.",
    ),
    Flag(
        "--topology-score",
        BOOLEAN,
        "Register scores for pairs of devices by their links.",
        environment=("ENABLE_TOPOLOGY_SCORE",),
    ),
    Flag(
        "--unregister-on-stop",
        BOOLEAN,
        "Unregister the devices when the plugin stops. Running pods keep theirs.",
    ),
    Flag(
        "--device-discovery-strategy",
        Value("strategy", _parse_discovery),
        "auto or nvml; nvml does not detect WSL, which has one device node for all devices.",
        "discovery",
        environment=("DEVICE_DISCOVERY_STRATEGY",),
        keys=("deviceDiscoveryStrategy",),
    ),
    Flag(
        "--fail-on-init-error",
        BOOLEAN,
        "Without a driver, fail at startup and retry; otherwise the node has no "
        "devices until there is one.",
        environment=("FAIL_ON_INIT_ERROR",),
        keys=("failOnInitError",),
    ),
    Flag(
        "--health-bind-address",
        ADDRESS,
        "Address of /readyz and /healthz, plain HTTP. /readyz: 200 when the "
        "devices are registered with the kubelet and can be given to containers, or there are none, else 503 and the "
        "reason. /healthz: 200, or 500 when a thread has died or hangs, the plugin's own server no longer answers, or "
        "only a new process can use the driver. Not served without the flag.",
    ),
    KUBE_TIMEOUT,
)
FLAGS: Groups = (
    ("Node", NODE),
    (
        "Sharing (flags override the device configuration, the node's entry overrides flags)",
        SHARING,
    ),
    ("Containers", CONTAINERS),
    ("Paths", PATHS),
    ("Registration", REGISTRATION),
)
