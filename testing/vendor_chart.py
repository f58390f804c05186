"""The vendors of the chart's configuration, their devices and rows of the table about them."""

from dataclasses import replace

from pytest import param

from hami.codec.device_config import Names, chart_config
from hami.model import Device, DeviceUsage, Node, Request
from hami.vendors.catalog import vendors
from testing.vendor_rows import Asked, Denied, Fits

CHART = vendors(chart_config(), ascend=True, iluvatar=True)
INT32 = "must be an integer between 0 and 2147483647"
MUTEX = {"hami.io/gpu-scheduler-policy": "mutex"}


def vendor(key, **names):
    """The vendor under the chart's configuration, with some of its names changed."""
    config = chart_config()
    changed = replace(
        config, names={**config.names, key: replace(config.names.get(key, Names()), **names)}
    )
    return vendors(changed, ascend=True, iluvatar=True)[key]


def card(vendor, uuid, slots_used=0, memory_used_mib=0, cores_used=0, co_tenants=(), **fields):
    """The usage of a device; *fields* are the device's."""
    made = {
        "uuid": uuid,
        "vendor": vendor.key,
        "model": vendor.key,
        "slots": 10,
        "memory_mib": 32768,
    }
    return DeviceUsage(
        Device(**made | fields), slots_used, memory_used_mib, cores_used, co_tenants=co_tenants
    )


def on_node(vendor, name="n", annotations=None, taken=None, labels=None, **capacity):
    """The devices of *vendor* on a node; *taken*: slots, memory and cores by index."""
    node = Node(
        name=name,
        annotations=annotations or {},
        labels=labels or {},
        capacity={
            getattr(vendor.resources, resource): str(amount)
            for resource, amount in capacity.items()
        },
    )
    return [
        DeviceUsage(device, *(taken or {}).get(device.index, ()))
        for device in vendor.decision.inventory(vendor, node)
    ]


def given(vendor, count=None, memory=None, cores=None):
    """Limits in the vendor's resources."""
    resources = vendor.resources
    amounts = {resources.count: count, resources.memory: memory, resources.cores: cores}
    return {name: str(amount) for name, amount in amounts.items() if amount is not None}


def asked(vendor, count=1, memory_mib=0, memory_percent=None, cores=0):
    """The resulting request."""
    return Request(
        vendor=vendor.key,
        count=count,
        memory_mib=memory_mib,
        memory_percent=memory_percent,
        cores=cores,
    )


def parses(vendor, limits, request, id, **fields):
    return param(Asked(vendor=vendor, limits=limits, request=request, **fields), id=id)


def denied(vendor, limits, why, id, **fields):
    return param(Denied(vendor=vendor, limits=limits, why=why, **fields), id=id)


def fits(vendor, usages, limits, outcome, id, **fields):
    return param(
        Fits(vendor=vendor, usages=usages, limits=limits, outcome=outcome, **fields), id=id
    )
