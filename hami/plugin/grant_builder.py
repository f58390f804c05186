"""Builds what a matched container is handed, and prepares the node for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.devices.dynamic_mig import DynamicMig
from hami.devices.inventory import DeviceInventory
from hami.kube.cluster import Cluster
from hami.node.grant import Grant, Recipient, shares_grant, visible_devices_grant
from hami.node.host import Host
from hami.node.limits import container_limits
from hami.node.pods import NodePods
from hami.plugin.container_match import AllocateCall, ContainerMatch, card_uuid, cards_of, check_ids


class GrantBuilder:
    """Builds grants from the cards, files and MIG instances of one node."""

    def __init__(self, config: PluginConfig, cluster: Cluster, inventory: DeviceInventory, host: Host,
                 mig: DynamicMig | None = None, *, node_pods: NodePods | None = None,
                 context_bytes: Callable[[Card], int] = lambda card: 0,
                 token: Callable[[], str] = lambda: str(uuid.uuid4())) -> None:
        """*mig*: only in operating mode ``mig``. *node_pods*: knows the environment of containers without a read from
        the API server. *context_bytes*: what a context takes on a card, 0 if unknown. *token*: returns a text that is
        new each time."""
        self._config = config
        self._cluster = cluster
        self._inventory = inventory
        self._host = host
        self._mig = mig
        self._node_pods = node_pods
        self._context_bytes = context_bytes
        self._token = token

    def check_ids(self, ids: Sequence[str]) -> None:
        """Raises AllocationRefused unless *ids* are different ids of cards of this node."""
        cards = {card.uuid for card in self._inventory.cards()}
        check_ids(ids, lambda one: card_uuid(one, cards) in cards)

    def build(self, match: ContainerMatch, call: AllocateCall, *,
              token: str | None = None) -> tuple[Grant, Mapping[str, str]]:
        """Returns the grant of the container, and annotations of the pod that record it.

        *token*: of a container that may have run before, whose directory is kept; a new one by default.
        Creates its MIG instances, or the directory of its processes. Raises: AllocationRefused; HostError; ClusterError
        if the API server does not answer; HamiError of the driver.
        """
        config, pod, container = self._config, match.pod, match.container
        parts = cards_of(match, call, self._inventory.snapshot(), limited=self._mig is None,
                         aligned=config.aligned and self._mig is None)
        if self._mig is not None:
            instances, annotations = self._mig.prepare(pod, container.position, container.shares)
            cards = [card for card, _ in parts]
            facts = self._host.facts(limited=False, instances=[
                (card.minor, one.gpu_instance, one.compute_instance)
                for card, one in zip(cards, instances, strict=True)])
            ids = [one.uuid for one in instances]
            return visible_devices_grant(config, ids, cards, facts, token or self._token()), annotations
        # the literal variables of a container never change, so a late watch may tell them
        env = self._node_pods.environment(pod.ref.uid, container.name) if self._node_pods is not None else None
        if env is None:
            env = self._cluster.environment(pod.ref, container.name)
        recipient = Recipient(pod_uid=pod.ref.uid, container=container.name, token=token or self._token(), env=env)
        limits = container_limits(config, parts, env, self._context_bytes)
        facts = self._host.facts(limited=True)
        self._host.prepare(pod.ref.uid, container.name, keep=token is not None)
        self._host.write_limits(pod.ref.uid, container.name, recipient.token, limits, keep=token is not None)
        return shares_grant(config, parts, facts, recipient), {}
