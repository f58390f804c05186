"""The annotations, locks, devices and amounts of every vendor, as a table for the agent and the auditor.

It states the specification independently of ``hami/``, so that faults there are detected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

__all__ = [
    "APP_CLASS",
    "MLU_ASSIGNED",
    "MLU_LOCK",
    "MUTEX",
    "PHASE",
    "VENDORS",
    "Card",
    "DeviceRequest",
    "Entry",
    "Profile",
    "Vendor",
    "device_request",
    "vendor_of",
]

Object = dict[str, Any]
Notes = Mapping[str, str]

MUTEX = "hami.io/mutex.lock"
PHASE = "hami.io/bind-phase"
MLU_LOCK = "cambricon.com/dsmlu.lock"
MLU_ASSIGNED = "CAMBRICON_DSMLU_ASSIGNED"

APP_CLASS = "metax-tech.com/sgpu-app-class"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
QUARTER, HALF, ALL = VXPU_MIB = (24576, 49152, 98304)


class Profile(NamedTuple):
    """A part into which a device can be divided. *places*: pairs of start and size, in memory slices."""

    name: str
    memory: int
    cores: int
    slices: int
    places: tuple[tuple[int, int], ...] = ()


class Card(NamedTuple):
    """A device of a node. *cut*: its cores are not added up, since its parts are exclusive."""

    node: str
    uuid: str
    index: int
    model: str
    slots: int
    memory: int
    cores: int
    vendor: str = "NVIDIA"
    cut: bool = False
    profiles: tuple[Profile, ...] = ()


class Entry(NamedTuple):
    """A part of a device that a container holds, from the annotation of its pod."""

    uuid: str
    type: str
    memory: int
    cores: int


class DeviceRequest(NamedTuple):
    """A request of a container to one vendor; ``None`` where it does not specify. *written*: memory as written."""

    count: int
    memory: int | None = None
    percent: int | None = None
    cores: int | None = None
    written: str = ""


Gets = Callable[["Vendor", DeviceRequest, Card, Notes], list[tuple[int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """One kind of device.

    *count*, *memory*, *percent*, *cores*: resource names. *gets*: the valid pairs of memory and cores for a request,
    given the device and the annotations of the pod. *wants*: the number of devices. *cards*: the devices of a node.
    """

    key: str
    allocated: str
    count: str
    cards: Callable[[Vendor, Object], list[Card]]
    to_allocate: str = ""
    register: str = ""
    lock: str = ""
    memory: str = ""
    percent: str = ""
    cores: str = ""
    unit: int = 1
    default_cores: int = 0
    gets: Gets
    wants: Callable[[DeviceRequest, Card], int] = lambda request, card: request.count
    without_count: bool = False


def device_request(vendor: Vendor, container: Object) -> DeviceRequest | None:
    """Returns the request of *container* to *vendor*, limits before requests; ``None`` without one."""
    resources = container.get("resources") or {}
    texts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    memory, percent, cores = (
        whole(texts[name]) if name in texts else None
        for name in (vendor.memory, vendor.percent, vendor.cores)
    )
    count = whole(texts.get(vendor.count, "0"))
    if not count and not (vendor.without_count and (memory or cores)):
        return None
    return DeviceRequest(count, memory, percent, cores, texts.get(vendor.memory, ""))


def whole(quantity: str) -> int:
    """Returns a quantity as the API server renders it (``32000`` becomes ``32k``), rounded up."""
    digits = quantity.rstrip("KMGTPEikmu")
    scale = {
        "": 1,
        "k": 10**3,
        "M": 10**6,
        "G": 10**9,
        "T": 10**12,
        "Ki": 2**10,
        "Mi": 2**20,
        "Gi": 2**30,
        "Ti": 2**40,
    }
    unit = quantity[len(digits) :]
    return math.ceil(Decimal(digits) / 1000 if unit == "m" else Decimal(digits) * scale[unit])


def vendor_of(key: str) -> Vendor:
    return next(vendor for vendor in VENDORS if vendor.key == key)


# -- what a container gets of a card


def plain(
    vendor: Vendor, request: DeviceRequest, card: Card, notes: Notes
) -> list[tuple[int, int]]:
    cores = vendor.default_cores if request.cores is None else request.cores
    return [(memory_of(vendor, request, card), min(cores, 100))]


def memory_of(vendor: Vendor, request: DeviceRequest, card: Card) -> int:
    percent = 100 if request.percent is None else request.percent or 100
    return request.memory * vendor.unit if request.memory else card.memory * percent // 100


def gpu_or_instance(
    vendor: Vendor, request: DeviceRequest, card: Card, notes: Notes
) -> list[tuple[int, int]]:
    """In MIG mode, any sufficient profile; the largest one is sufficient for a whole GPU."""
    if not card.profiles:
        return plain(vendor, request, card, notes)
    largest = max(profile.memory for profile in card.profiles)
    need = (
        memory_of(vendor, request, card)
        if request.memory
        else min(memory_of(vendor, request, card), largest)
    )
    return [(profile.memory, profile.cores) for profile in card.profiles if profile.memory >= need]


def compute_units(
    vendor: Vendor, request: DeviceRequest, card: Card, notes: Notes
) -> list[tuple[int, int]]:
    percent = 100 if request.cores is None else request.cores
    return [
        (memory_of(vendor, request, card), min(max(card.cores * percent // 100, 1), card.cores))
    ]


def nothing(
    vendor: Vendor, request: DeviceRequest, card: Card, notes: Notes
) -> list[tuple[int, int]]:
    return [(0, 0)]


def everything(
    vendor: Vendor, request: DeviceRequest, card: Card, notes: Notes
) -> list[tuple[int, int]]:
    return [(card.memory, card.cores)]


def slice_of(
    vendor: Vendor, request: DeviceRequest, card: Card, notes: Notes
) -> list[tuple[int, int]]:
    memory = (
        ALL
        if request.memory is None
        else next((size for size in VXPU_MIB if request.memory <= size), ALL)
    )
    return [(memory, memory * 100 // ALL)]


def summed(
    vendor: Vendor, request: DeviceRequest, card: Card, notes: Notes
) -> list[tuple[int, int]]:
    """Memory and cores are the sum of all devices of the container."""
    memory = request.memory * vendor.unit // request.count if request.memory else card.memory
    return [(memory, (request.cores or 0) // request.count)]


def sgpu(vendor: Vendor, request: DeviceRequest, card: Card, notes: Notes) -> list[tuple[int, int]]:
    """Memory in GiB, or with a binary unit; no cores for online pods."""
    memory = card.memory
    if request.memory:
        memory = request.memory // 2**20 if request.written.endswith("i") else request.memory * 1024
    return [
        (
            memory,
            0
            if notes.get(APP_CLASS) == "online"
            else 100
            if request.cores is None
            else request.cores,
        )
    ]


def neuron(
    vendor: Vendor, request: DeviceRequest, card: Card, notes: Notes
) -> list[tuple[int, int]]:
    """A bit mask of all cores, or of some."""
    every = 2**card.cores - 1
    return [(0, every)] if request.count else [(0, mask) for mask in range(1, every + 1)]


def drs(vendor: Vendor, request: DeviceRequest, card: Card, notes: Notes) -> list[tuple[int, int]]:
    """A profile with the requested slices, or with sufficient memory (GB; MiB beyond twice the largest) and cores."""
    if request.count:
        return [(one.memory, one.cores) for one in card.profiles if one.slices == request.count]
    need = request.memory or 0
    need = need if need > 2 * max(one.memory for one in card.profiles) // 1024 else need * 1024
    return [
        (one.memory, one.cores)
        for one in card.profiles
        if one.memory >= need and one.cores >= (request.cores or 0)
    ]


# -- the cards of a node


def annotation(node: Object, key: str) -> str | None:
    return (node["metadata"].get("annotations") or {}).get(key)


def capacity(node: Object, name: str) -> int:
    return whole((node.get("status", {}).get("capacity") or {}).get(name, "0"))


def registered(vendor: Vendor, node: Object) -> list[Card]:
    """The devices in the register annotation, in JSON or in text form."""
    text, name = annotation(node, vendor.register), node["metadata"]["name"]
    if not text:
        return []
    if text.lstrip().startswith("["):
        return [
            json_card(vendor, name, {key.lower(): value for key, value in card.items()})
            for card in json.loads(text)
        ]
    rows = [part.split(",") for part in text.split(":") if part]
    return [
        Card(
            name,
            row[0],
            int(row[7]) if len(row) > 7 else 0,
            row[4],
            int(row[1]),
            int(row[2]),
            int(row[3]),
            vendor.key,
        )
        for row in rows
    ]


def json_card(vendor: Vendor, node: str, card: Object) -> Card:
    profiles = tuple(
        Profile(
            one["name"],
            one["memoryMB"],
            one["core"],
            one["sliceCount"],
            tuple((place.get("start", 0), place["size"]) for place in one["placements"]),
        )
        for one in card.get("migprofiles", ())
    )
    cores = (
        100
        if vendor.key in HUNDRED_CORES or vendor.key.startswith("Ascend")
        else card.get("devcore", 0)
    )
    slots, memory = card.get("count", 0), card.get("devmem", 0)
    # the registered count is ignored
    slots = max(slots, memory // QUARTER) if vendor.key == "XPU" else slots
    return Card(
        node,
        card["id"],
        card.get("index", 0),
        card.get("type", ""),
        slots,
        memory,
        cores,
        vendor.key,
        bool(profiles),
        profiles,
    )


HUNDRED_CORES = ("Biren", "Vastai", "XPU")


def counted(
    word: str, slots: int, memory: int, cores: int
) -> Callable[[Vendor, Object], list[Card]]:
    """Devices of which only the number is known, from the capacity of the node."""

    def cards(vendor: Vendor, node: Object) -> list[Card]:
        name = node["metadata"]["name"]
        return [
            Card(
                name, f"{name}-{word}-{index}", index, vendor.key, slots, memory, cores, vendor.key
            )
            for index in range(capacity(node, vendor.count))
        ]

    return cards


def divided(word: str, cores: int) -> Callable[[Vendor, Object], list[Card]]:
    """Devices with a fixed number of cores, which share the memory capacity of the node."""

    def cards(vendor: Vendor, node: Object) -> list[Card]:
        name, have, units = (
            node["metadata"]["name"],
            capacity(node, vendor.cores),
            capacity(node, vendor.memory),
        )
        return [
            Card(
                name,
                f"{name}-{word}-{index}",
                index,
                vendor.key,
                100,
                units * vendor.unit * cores // have,
                cores,
                vendor.key,
            )
            for index in range(math.ceil(have / cores))
        ]

    return cards


def neurons(vendor: Vendor, node: Object) -> list[Card]:
    """No devices without the label of the instance type."""
    name, count, cores = (
        node["metadata"]["name"],
        capacity(node, vendor.count),
        capacity(node, vendor.cores),
    )
    if INSTANCE_TYPE not in (node["metadata"].get("labels") or {}):
        return []
    return [
        Card(
            name,
            f"{name}-AWSNeuron-{index}",
            index,
            vendor.key,
            cores // count,
            0,
            cores // count,
            vendor.key,
            cut=True,
        )
        for index in range(count)
    ]


def drs_cards(vendor: Vendor, node: Object) -> list[Card]:
    if (text := annotation(node, vendor.register)) is None:
        return []
    name, known = node["metadata"]["name"], json.loads(text)
    sizes = [(profile, *map(int, re.findall(r"\d+", profile))) for profile in known["profiles"]]
    most = max(slices for _, slices, _ in sizes)
    profiles = tuple(
        Profile(profile, gib * 1024, math.ceil(slices * 100 / most), slices)
        for profile, slices, gib in sizes
    )
    return [
        Card(
            name,
            f"{name}-enflame-drs-{device['index']}",
            int(device["index"]),
            vendor.key,
            int(device["capacity"]),
            max(one.memory for one in profiles),
            100,
            vendor.key,
            True,
            profiles,
        )
        for device in known["devices"]
    ]


def sgpu_cards(vendor: Vendor, node: Object) -> list[Card]:
    if (text := annotation(node, vendor.register)) is None:
        return []
    return [
        Card(
            node["metadata"]["name"],
            card["uuid"],
            index,
            vendor.key,
            card["totalDevCount"],
            card["totalVRam"],
            card["totalCompute"],
            vendor.key,
        )
        for index, card in enumerate(json.loads(text))
    ]


# -- the table


def ascend(word: str) -> Vendor:
    return Vendor(
        key=word,
        allocated=f"hami.io/{word}-devices-allocated",
        to_allocate=f"hami.io/{word}-devices-to-allocate",
        register=f"hami.io/node-register-{word}",
        lock=MUTEX,
        count=f"huawei.com/{word}",
        memory=f"huawei.com/{word}-memory",
        cores=f"huawei.com/{word}-core",
        cards=registered,
        gets=plain,
    )


def iluvatar(word: str) -> Vendor:
    return Vendor(
        key=word,
        allocated=f"hami.io/{word}-devices-allocated",
        to_allocate=f"hami.io/{word}-devices-to-allocate",
        register=f"hami.io/node-{word}-register",
        lock=MUTEX,
        count=f"iluvatar.ai/{word}-vgpu",
        memory=f"iluvatar.ai/{word}.vMem",
        cores=f"iluvatar.ai/{word}.vCore",
        unit=256,
        cards=registered,
        gets=plain,
    )


VENDORS = (
    Vendor(
        key="NVIDIA",
        allocated="hami.io/vgpu-devices-allocated",
        to_allocate="hami.io/vgpu-devices-to-allocate",
        register="hami.io/node-nvidia-register",
        lock=MUTEX,
        count="nvidia.com/gpu",
        memory="nvidia.com/gpumem",
        percent="nvidia.com/gpumem-percentage",
        cores="nvidia.com/gpucores",
        cards=registered,
        gets=gpu_or_instance,
    ),
    Vendor(
        key="MLU",
        allocated="hami.io/cambricon-mlu-devices-allocated",
        to_allocate="hami.io/cambricon-mlu-devices-to-allocate",
        lock=MLU_LOCK,
        count="cambricon.com/vmlu",
        memory="cambricon.com/mlu.smlu.vmemory",
        cores="cambricon.com/mlu.smlu.vcore",
        unit=256,
        default_cores=100,
        cards=divided("cambricon-mlu", 100),
        gets=plain,
    ),
    Vendor(
        key="DCU",
        allocated="hami.io/dcu-devices-allocated",
        to_allocate="hami.io/dcu-devices-to-allocate",
        register="hami.io/node-dcu-register",
        lock=MUTEX,
        count="hygon.com/dcunum",
        memory="hygon.com/dcumem",
        cores="hygon.com/dcucores",
        default_cores=100,
        cards=registered,
        gets=plain,
    ),
    Vendor(
        key="AMD",
        allocated="hami.io/amd-devices-allocated",
        to_allocate="hami.io/amd-devices-to-allocate",
        register="hami.io/node-amd-register",
        lock=MUTEX,
        count="amd.com/gpu",
        memory="amd.com/gpumem",
        cores="amd.com/gpucores",
        cards=registered,
        gets=compute_units,
    ),
    Vendor(
        key="AWSNeuron",
        allocated="hami.io/aws-neuron-devices-allocated",
        count="aws.amazon.com/neuron",
        cores="aws.amazon.com/neuroncore",
        cards=neurons,
        gets=neuron,
        without_count=True,
        wants=lambda request, card: request.count or math.ceil((request.cores or 0) / card.cores),
    ),
    Vendor(
        key="Biren",
        allocated="hami.io/Biren-devices-allocated",
        to_allocate="hami.io/Biren-devices-to-allocate",
        register="hami.io/node-biren-register",
        lock=MUTEX,
        count="birentech.com/gpu",
        cards=registered,
        gets=nothing,
    ),
    Vendor(
        key="GCU",
        allocated="hami.io/enflame-gcu-devices-allocated",
        to_allocate="hami.io/enflame-gcu-devices-to-allocate",
        count="enflame.com/gcu",
        cards=counted("GCU", 1, 100, 100),
        gets=everything,
    ),
    Vendor(
        key="Enflame",
        allocated="hami.io/enflame-vgpu-devices-allocated",
        register="enflame.com/gcu-drs-capacity",
        count="enflame.com/drs-gcu",
        memory="enflame.com/gcu-memory",
        cores="enflame.com/gcu-core",
        cards=drs_cards,
        gets=drs,
        without_count=True,
        wants=lambda request, card: 1,
    ),
    Vendor(
        key="kunlun",
        allocated="hami.io/kunlun-allocated",
        count="kunlunxin.com/xpu",
        cards=counted("kunlun", 100, ALL, 100),
        gets=everything,
    ),
    Vendor(
        key="XPU",
        allocated="hami.io/xpu-devices-allocated",
        to_allocate="hami.io/xpu-devices-to-allocate",
        register="hami.io/node-register-xpu",
        lock=MUTEX,
        count="kunlunxin.com/vxpu",
        memory="kunlunxin.com/vxpu-memory",
        cards=registered,
        gets=slice_of,
    ),
    Vendor(
        key="Metax-GPU",
        allocated="hami.io/metax-gpu-devices-allocated",
        to_allocate="hami.io/metax-gpu-devices-to-allocate",
        count="metax-tech.com/gpu",
        cards=counted("metax", 1, 65536, 100),
        gets=everything,
    ),
    Vendor(
        key="Metax-SGPU",
        allocated="hami.io/metax-sgpu-devices-allocated",
        to_allocate="hami.io/metax-sgpu-devices-to-allocate",
        register="metax-tech.com/node-gpu-devices",
        lock=MUTEX,
        count="metax-tech.com/sgpu",
        memory="metax-tech.com/vmemory",
        cores="metax-tech.com/vcore",
        cards=sgpu_cards,
        gets=sgpu,
    ),
    Vendor(
        key="Mthreads",
        allocated="hami.io/mthreads-vgpu-devices-allocated",
        count="mthreads.com/vgpu",
        memory="mthreads.com/sgpu-memory",
        cores="mthreads.com/sgpu-core",
        unit=512,
        cards=divided("mthreads", 16),
        gets=summed,
    ),
    Vendor(
        key="Vastai",
        allocated="hami.io/Vastai-devices-allocated",
        to_allocate="hami.io/Vastai-devices-to-allocate",
        register="hami.io/node-va-register",
        lock=MUTEX,
        count="vastaitech.com/va",
        cards=registered,
        gets=nothing,
    ),
    *map(
        ascend,
        (
            "Ascend910A",
            "Ascend910B2",
            "Ascend910B3",
            "Ascend910B4",
            "Ascend910B4-1",
            "Ascend310P",
            "Ascend910C",
        ),
    ),
    *map(iluvatar, ("MR-V100", "MR-V50", "BI-V150", "BI-V100")),
)
