"""Vendors of third parties: packages that provide vendors through the entry point group ``hami.vendors``.

The name of an entry point is that of its section in the device configuration. Its object is called with that section
(empty if there is none) and returns one vendor or several. Every problem with an entry point is an error that names it:
a scheduler that silently ignores devices would be worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

from hami.codec.device_config import RESOURCE_NAME, DeviceConfig, DeviceConfigFile
from hami.codec.keys import is_scheduler_owned
from hami.errors import HamiError, MalformedInput
from hami.vendors.catalog import vendors
from hami.vendors.spec import Catalog, Vendor

GROUP = "hami.vendors"

_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,41}[A-Za-z0-9])?")  # a part of label keys
_RESOURCE = re.compile(RESOURCE_NAME)


def sections() -> tuple[str, ...]:
    """Returns the sections of the device configuration that third parties read, sorted, without importing them.

    Raises: HamiError if two packages claim a section, or one claims a section of HAMi's own.
    """
    return tuple(entry.name for entry in _entries())


def catalog(devices: DeviceConfig, *, ascend: bool = False, iluvatar: bool = False) -> Catalog:
    """All vendors that *devices* names, ours and those of third parties; *ascend* and *iluvatar* chips only when
    enabled.

    Raises: HamiError with the name of an entry point that cannot be loaded or conflicts with others.
    """
    combined = vendors(devices, ascend=ascend, iluvatar=iluvatar)
    for entry in _entries():
        added = _vendors_of(entry, devices.extra_sections.get(entry.name, {}))
        try:
            combined = Catalog([*combined, *added])
        except MalformedInput as error:
            raise _failure(entry, str(error)) from error
    return combined


def full_catalog(devices: DeviceConfig) -> Catalog:
    """Returns all vendors, including those that need a flag."""
    return catalog(devices, ascend=True, iluvatar=True)


def _entries() -> list[EntryPoint]:
    entries: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        if entry.name in DeviceConfigFile.__struct_fields__:
            raise _failure(entry, "expected a name that is not a section of HAMi's own")
        if entries.setdefault(entry.name, entry) != entry:
            raise _failure(entry, f"expected another name than that of {entries[entry.name].value}")
    return list(entries.values())


def _vendors_of(entry: EntryPoint, section: Mapping[str, object]) -> list[Vendor]:
    try:
        result = entry.load()(section)
        added = [result] if isinstance(result, Vendor) else list(result)
    except MalformedInput as error:
        raise _failure(entry, f"section {entry.name}: {error}") from error
    except Exception as error:  # third-party code may raise anything
        raise _failure(entry, f"cannot be loaded: {type(error).__name__}: {error}") from error
    for vendor in added:
        if not isinstance(vendor, Vendor):
            raise _failure(entry, f"expected a Vendor or several, not {vendor!r}")
        _check(entry, vendor)
    return added


def _check(entry: EntryPoint, vendor: Vendor) -> None:
    """Checks names that would otherwise fail only when a pod is scheduled."""
    keys = vendor.annotations
    rules: tuple[tuple[str, Iterable[str], Callable[[str], object], str], ...] = (
        ("key", [vendor.key], _KEY.fullmatch, "expected letters, digits, - _ and . only"),
        ("count", [vendor.resources.count], bool, "expected a resource name"),
        (
            "resources",
            vendor.resources.names,
            _RESOURCE.match,
            "expected resource names such as nvidia.com/gpu",
        ),
        (
            "allocated",
            [keys.allocated, keys.to_allocate or keys.allocated],
            is_scheduler_owned,
            "expected a key that users may not write, such as hami.io/acme-devices-allocated",
        ),
    )
    for field, texts, is_right, problem in rules:
        for text in texts:
            if not (isinstance(text, str) and is_right(text)):
                raise _failure(entry, f"vendor {vendor.key}: {field} {text!r}: {problem}")


def _failure(entry: EntryPoint, problem: str) -> HamiError:
    return HamiError(f"{GROUP}: {entry.name} = {entry.value}: {problem}")
