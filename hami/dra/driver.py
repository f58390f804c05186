"""The driver of one node: its parts, and whether they work."""

from __future__ import annotations

import time
from pathlib import Path

from hami.devices.config import PluginConfig
from hami.dra.prepare import ClaimPreparer
from hami.dra.publisher import SlicePublisher
from hami.dra.server import FOLDER, DraRegistration, DraServer
from hami.kube.claims import DynamicResources
from hami.kube.cluster import Cluster
from hami.node.container_specs import ContainerSpecs
from hami.node.grant_builder import GrantBuilder
from hami.node.memory_wall import MemoryWall
from hami.node.pods import NodePods
from hami.runtime.parts import Part, join_reasons


class DraDriver(Part):
    """Offers the cards of a node to kube-scheduler, and prepares claims for its kubelet."""

    def __init__(
        self,
        config: PluginConfig,
        cluster: Cluster,
        resources: DynamicResources,
        grants: GrantBuilder,
        specs: ContainerSpecs,
        memory_wall: MemoryWall,
        *,
        node_pods: NodePods | None = None,
    ) -> None:
        """*specs*: those of claims."""
        folder = Path(config.kubelet_socket).parent.parent / FOLDER
        inventory = self._inventory = grants.inventory
        self.claims = ClaimPreparer(
            config, cluster, resources, grants, specs, memory_wall, node_pods=node_pods
        )
        """The claims of the node."""
        self._publisher = SlicePublisher(config, cluster, resources, inventory)
        self._registration = DraRegistration(
            lambda on_status: DraServer(folder, config.node, inventory, self.claims, on_status),
            clock=time.monotonic,
            kubelet=Path(config.kubelet_socket),
            on_registered=self._publisher.publish,
        )
        super().__init__(self._registration, self._publisher, resources.watch(self._publisher))

    def is_registered(self) -> bool:
        """Reports whether the kubelet can call the driver."""
        return not self._registration.unready_reason

    def unready_reason(self) -> str:
        """Returns why pods do not get devices; empty if they do, or if there are none."""
        if not self._inventory.cards():
            return ""
        return self._registration.unready_reason or self._publisher.unready_reason

    def hung_reason(self) -> str:
        """Returns why the process must be restarted; empty if it must not."""
        return join_reasons([super().hung_reason(), self._registration.hung_reason()])
