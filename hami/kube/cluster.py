"""The API client of HAMi: one method for each call to the API server. Tests replace it with a fake.

Arguments and results are records. A call is repeated only where that is safe: a read after a broken connection, a write
that the server has certainly not received.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from hami.codec.objects import parse_disruption_budget, parse_node
from hami.codec.pods import parse_pod
from hami.errors import MalformedInput
from hami.kube.api import STRATEGIC_MERGE_PATCH
from hami.kube.calls import Edits, as_json, path_of
from hami.kube.config_maps import ConfigMaps
from hami.kube.gangs import read_pod_group
from hami.kube.leases import Leases
from hami.kube.pages import parse_page, read_pages
from hami.kube.pods import Pods
from hami.kube.priority_classes import PriorityClasses
from hami.kube.trust import Trust
from hami.model import DisruptionBudget, Node, Pod, PodGroup, PodGroupRef


class Cluster(Pods, Leases, Trust, ConfigMaps, PriorityClasses):
    """All calls to the API server."""

    def node(self, name: str) -> Node | None:
        """Returns the current node; ``None`` if there is none. Raises also: MalformedInput."""
        return self._get(path_of("nodes", None, name), parse_node)

    def annotate_node(self, name: str, annotations: Edits, resource_version: str = "") -> Node:
        """Changes annotations of a node and returns its new state. With *resource_version* it is a compare-and-swap.

        Raises: NotFound; Conflict if the node has changed since *resource_version*.
        """
        meta: dict[str, object] = {"annotations": annotations}
        if resource_version:
            meta["resourceVersion"] = resource_version
        return parse_node(self._patch(path_of("nodes", None, name), {"metadata": meta}))

    def label_node(self, name: str, labels: Edits) -> None:
        """Changes labels of a node. Raises: NotFound."""
        self._patch(path_of("nodes", None, name), {"metadata": {"labels": labels}})

    def publish_capacity(self, name: str, capacity: Edits, annotations: Edits) -> None:
        """Changes amounts of a node's capacity and allocatable, and its annotations. Raises: NotFound."""
        self._patch(
            f"{path_of('nodes', None, name)}/status",
            {
                "metadata": {"annotations": annotations},
                "status": {"capacity": capacity, "allocatable": capacity},
            },
        )

    def publish_health(self, name: str, annotations: Edits, condition: Mapping[str, str]) -> None:
        """Changes annotations of a node, and fields of one of the conditions in its status. Raises: NotFound."""
        self._write(
            "PATCH",
            f"{path_of('nodes', None, name)}/status",
            body=as_json(
                {
                    "metadata": {"annotations": annotations},
                    "status": {"conditions": [condition]},
                }
            ),
            content_type=STRATEGIC_MERGE_PATCH,
        )

    def bound_pods(self) -> Iterator[Pod]:
        """Yields all pods that are bound, page by page, but for those that cannot be read. Raises also:
        MalformedInput."""
        query = {"fieldSelector": "spec.nodeName!="}
        for page in read_pages(self._api.request, "pods", path_of("pods", None), query):
            for item in page.items:
                with contextlib.suppress(MalformedInput):  # one pod keeps nobody from a plan
                    yield parse_pod(item)

    def disruption_budgets(self) -> list[DisruptionBudget]:
        """Returns the PodDisruptionBudgets of all namespaces. Raises also: MalformedInput."""
        data = self._read(
            "GET", path_of("poddisruptionbudgets", None), query={"resourceVersion": "0"}
        )
        return [
            parse_disruption_budget(item) for item in parse_page("poddisruptionbudgets", data).items
        ]

    def pod_group(self, ref: PodGroupRef) -> PodGroup | None:
        """Returns what a PodGroup says of its pods; ``None`` if *ref* names none. Raises also: MalformedInput."""
        return read_pod_group(lambda resource, path: self._read("GET", path), ref)

    def create_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        """Creates a core/v1 Event. Raises: Conflict if its name exists, NotFound if the namespace does not."""
        self._write("POST", path_of("events", namespace), body=as_json(event))

    def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Merges *patch* into an Event. Raises: NotFound if it has expired."""
        self._patch(path_of("events", namespace, name), patch)
