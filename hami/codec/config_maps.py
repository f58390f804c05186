"""ConfigMaps of the API server: their texts, and what is needed to change or delete the one that was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hami.codec.documents import decode
from hami.codec.objects import Metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigMapRecord:
    """A ConfigMap. *resource_version*: empty for one that does not exist yet. *data*: texts by key; in a write, other
    keys go."""

    namespace: str
    name: str
    resource_version: str = ""
    data: Mapping[str, str] = field(default_factory=dict, repr=False)


class _ConfigMap(msgspec.Struct):
    metadata: Metadata = Metadata()
    data: dict[str, str] | None = None


_CONFIG_MAP = msgspec.json.Decoder(_ConfigMap)


def parse_config_map(data: bytes | msgspec.Raw, source: str = "ConfigMap") -> ConfigMapRecord:
    """Returns the ConfigMap in *data* (JSON). *source*: its name in errors. Raises: MalformedInput."""
    wire = decode(source, _CONFIG_MAP, data)
    meta = wire.metadata
    return ConfigMapRecord(
        namespace=meta.namespace,
        name=meta.name,
        resource_version=meta.resource_version,
        data=wire.data or {},
    )


def render_config_map(record: ConfigMapRecord, labels: Mapping[str, str]) -> dict[str, Any]:
    """Returns the object to create, or to put in the place of the one that was read."""
    meta: dict[str, Any] = {"name": record.name, "namespace": record.namespace, "labels": labels}
    if record.resource_version:
        meta["resourceVersion"] = record.resource_version
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": record.data}
