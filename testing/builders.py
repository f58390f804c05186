"""Records with defaults, so that a test names only what matters. By default a device is an idle A40."""

import hashlib
from dataclasses import replace

from hami.codec.device_config import DeviceConfig, NvidiaConfig
from hami.codec.keys import ASSIGNED_NODE
from hami.codec.register import render_devices_json
from hami.model import (
    Container,
    ContainerKind,
    Device,
    DeviceUsage,
    Node,
    Pod,
    PodRef,
    QuotaLimits,
    Request,
    Share,
)
from hami.node.library import CHECKSUMS
from hami.node.limits import region_parts
from hami.node.region_layout import REGION_SIZE
from hami.scheduling.pod_request import PodRequest, make_pod_request
from hami.scheduling.quota import quota_allows
from hami.scheduling.usage import Charge
from hami.state.bookings import Booking
from hami.state.counting import complete
from hami.state.read_pod import read_bookings
from hami.state.table import Table
from hami.vendors.catalog import vendors
from hami.vendors.request import most_shares
from hami.vendors.spec import Catalog

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


def nvidia(**config):
    """The vendor NVIDIA under the chart's configuration, with *config* (fields of NvidiaConfig) changed."""
    (vendor,) = vendors(DeviceConfig(nvidia=NvidiaConfig(**config)))
    return vendor


NVIDIA = nvidia()
ONLY_NVIDIA = Catalog([NVIDIA])


def gpu(uuid="GPU-0", **fields):
    """A device."""
    return Device(
        **{
            "uuid": uuid,
            "vendor": "NVIDIA",
            "model": "NVIDIA A40",
            "slots": 10,
            "memory_mib": 46068,
        }
        | fields
    )


def usage(uuid="GPU-0", slots_used=0, memory_used_mib=0, cores_used=0, **fields):
    """The usage of a device; *fields* are the device's."""
    return DeviceUsage(gpu(uuid, **fields), slots_used, memory_used_mib, cores_used)


def usages(*uuids, **fields):
    """Idle devices of one model, with indexes in the given order."""
    return [usage(uuid, index=index, **fields) for index, uuid in enumerate(uuids)]


def container(limits=None, *, kind=APP, requests=None, name="c"):
    """A container with these limits."""
    return Container(
        name=name,
        kind=kind,
        limits={key: str(value) for key, value in (limits or {}).items()},
        requests={key: str(value) for key, value in (requests or {}).items()},
    )


def gpus(count=1, memory=None, cores=None, percent=None, kind=APP):
    """A container that requests NVIDIA devices."""
    asked = {"gpu": count, "gpumem": memory, "gpucores": cores, "gpumem-percentage": percent}
    return container(
        {f"nvidia.com/{name}": value for name, value in asked.items() if value is not None},
        kind=kind,
    )


def booking_of(pod, node, vendors, usages):
    """The booking that the pod's annotations say, and the problems with them."""
    assigned = replace(pod, annotations={ASSIGNED_NODE: node, **pod.annotations})
    reading = read_bookings(assigned, vendors, most_shares(vendors, pod.containers))
    return complete(reading, usages)[pod.init_done], reading.problems


def pod(*containers, name="pod1", namespace="default", uid=None, **fields):
    """A pod; its init containers come first, in any given order."""
    ordered = sorted(containers, key=lambda c: c.kind is APP)
    return Pod(
        ref=PodRef(namespace, name, uid or f"uid-{name}"), containers=tuple(ordered), **fields
    )


def node(name="n1", *devices, annotations=None, **fields):
    """A node that has registered *devices*."""
    registered = {NVIDIA.annotations.register: render_devices_json(devices)} if devices else {}
    return Node(
        name=name,
        annotations=registered | (annotations or {}),
        **{"allocatable": {NVIDIA.resources.count: str(sum(device.slots for device in devices))}}
        | fields,
    )


def request(count=1, memory_mib=0, memory_percent=None, cores=0, vendor="NVIDIA"):
    """The request of one container for one vendor."""
    return Request(
        vendor=vendor,
        count=count,
        memory_mib=memory_mib,
        memory_percent=memory_percent,
        cores=cores,
    )


def share(uuid="GPU-0", memory_mib=0, cores=0, type="NVIDIA"):
    """Part of one device."""
    return Share(uuid, type, memory_mib, cores)


def pod_request(*containers, annotations=None, policy="spread", vendors=(NVIDIA,)) -> PodRequest:
    """The request of a pod with *containers* under the device policy *policy*."""
    found = make_pod_request(
        pod(*containers, annotations=annotations or {}), Catalog(vendors), policy
    )
    assert found is not None, "no container requests a device"
    return found


def quota(name="quota", namespace="default", binary=(), scopes=(), **limits):
    """A ResourceQuota with limits of NVIDIA's resources: ``gpumem=4000``; *binary*: those with a binary unit."""
    return QuotaLimits(
        namespace=namespace,
        name=name,
        uid=f"uid-{name}",
        limits={f"nvidia.com/{resource}": value for resource, value in limits.items()},
        binary=frozenset(f"nvidia.com/{resource}" for resource in binary),
        scopes=tuple(scopes),
    )


def charge(uuid="GPU-0", slots=1, memory_mib=0, cores=0):
    """The charge of one pod on one device."""
    return Charge(uuid, slots, memory_mib, cores)


def booking(uid, node, *charges, namespace="default", **fields):
    """The booking of one pod on one node."""
    return Booking(uid, namespace, node, (("NVIDIA", charges),) if charges else (), **fields)


def device_usage(cache):
    """The devices of every node in *cache* and their usage, sorted by vendor."""
    return {
        name: tuple(usage for vendor in sorted(usages) for usage in usages[vendor])
        for name, usages in cache.view().nodes.items()
    }


def content(cache):
    """Devices, bookings and quotas of *cache*, to be compared."""
    view = cache.view()
    return view.nodes, view.bookings, view.used, view.facts.quotas


def within_quota(admissions, namespace, pod):
    """Whether the quotas of *namespace* have room for *pod*. *admissions*: of a store, or a view."""
    return quota_allows(admissions.vendors, admissions.budgets(namespace, pod.scope), pod)


def cluster(**nodes):
    """An index of nodes with these device usages; what is taken of a device is booked."""
    index = Table()
    for name, usages in nodes.items():
        index.set_devices(name, "NVIDIA", tuple(usage.device for usage in usages))
        index.bookings.put(
            booking(
                f"others-{name}",
                name,
                *(
                    charge(v.device.uuid, v.slots_used, v.memory_used_mib, v.cores_used)
                    for v in usages
                ),
            )
        )
    return index


def write_checksums(folder):
    """Writes the sums of the files in *folder*, as the build of the image does."""
    names = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != CHECKSUMS
    )
    sums = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names
    ]
    (folder / CHECKSUMS).write_text("".join(sums))


def region_of(limits):
    """The shared region of a container with these limits, as its file has it."""
    region = bytearray(REGION_SIZE)
    for offset, part in region_parts(limits).items():
        region[offset : offset + len(part)] = part
    return bytes(region)
