"""The calls to the API server about ConfigMaps in a namespace of ours."""

from __future__ import annotations

from collections.abc import Mapping

from hami.codec.config_maps import ConfigMapRecord, parse_config_map, render_config_map
from hami.kube.calls import Calls, as_json, path_of
from hami.kube.pages import parse_meta, parse_page

_RESOURCE = "configmaps"


class ConfigMaps(Calls):
    """Calls about ConfigMaps."""

    def config_map(self, namespace: str, name: str) -> ConfigMapRecord | None:
        """Returns the current ConfigMap; ``None`` if there is none. Raises also: MalformedInput."""
        return self._get(path_of(_RESOURCE, namespace, name), parse_config_map)

    def write_config_map(
        self, record: ConfigMapRecord, labels: Mapping[str, str]
    ) -> ConfigMapRecord:
        """Writes the ConfigMap and returns it as stored. It replaces the one with ``record.resource_version``, or is
        created if *record* has no version.

        Raises: Conflict if it has changed or been created since, NotFound if it or its namespace is gone.
        """
        method, name = "POST", None
        if record.resource_version:
            method, name = "PUT", record.name
        path = path_of(_RESOURCE, record.namespace, name)
        return parse_config_map(
            self._write(method, path, body=as_json(render_config_map(record, labels)))
        )

    def config_map_names(self, namespace: str, selector: str, limit: int) -> list[str]:
        """Returns the first names, at most *limit*, of the ConfigMaps that a label selector selects.

        Raises also: MalformedInput.
        """
        query = {"labelSelector": selector, "limit": str(limit)}
        data = self._read("GET", path_of(_RESOURCE, namespace), query=query)
        return [parse_meta(item).name for item in parse_page(_RESOURCE, data).items]

    def delete_config_map(self, namespace: str, name: str) -> None:
        """Deletes a ConfigMap. Raises: NotFound if there is none."""
        self._write("DELETE", path_of(_RESOURCE, namespace, name))
