"""The vendors of the chart's configuration, and their devices."""

from dataclasses import replace

from hami.codec.device_config import Names, chart_config
from hami.model import Device, DeviceUsage, Node
from hami.vendors.catalog import vendors

CHART = vendors(chart_config(), ascend=True, iluvatar=True)


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
