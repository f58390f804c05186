"""Builds what a container is handed, and prepares the node for it: its directory and limits, or its MIG instances."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence

from hami.codec.core_limits import pod_cores_limit
from hami.codec.keys import CORES_LIMIT
from hami.codec.mig import MigAllocation
from hami.devices.cards import Card, Instance, MigDevice
from hami.devices.config import PluginConfig
from hami.devices.inventory import DeviceInventory
from hami.errors import HamiError, Rejected
from hami.kube.cluster import Cluster
from hami.model import Pod, PodRef, Share
from hami.node.dynamic_mig import DynamicMig
from hami.node.grant import Grant, shares_grant, visible_devices_grant
from hami.node.host import Host
from hami.node.limits import container_limits
from hami.node.pods import NodePods

log = logging.getLogger(__name__)

_SHOWN = 100  # characters of a value in a log message


class GrantBuilder:
    """Builds grants from the cards, files and MIG instances of one node. *inventory*: its cards."""

    def __init__(
        self,
        config: PluginConfig,
        cluster: Cluster,
        inventory: DeviceInventory,
        host: Host,
        mig: DynamicMig | None = None,
        *,
        node_pods: NodePods | None = None,
        context_bytes: Callable[[Card], int] = lambda card: 0,
        token: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """*mig*: only in operating mode ``mig``. *node_pods*: knows the environment of containers without a read from
        the API server. *context_bytes*: what a context takes on a card, 0 if unknown. *token*: returns a text that is
        new each time."""
        self.inventory = inventory
        self.host = host
        """The files of containers."""
        self._config = config
        self._cluster = cluster
        self._mig = mig
        self._node_pods = node_pods
        self._context_bytes = context_bytes
        self._token = token

    def build(
        self,
        pod: Pod,
        container: str,
        position: int,
        parts: Sequence[tuple[Card, Share]],
        *,
        token: str | None = None,
        variables: Mapping[str, str] | None = None,
        durable: bool = True,
    ) -> tuple[Grant, Mapping[str, str]]:
        """Returns the grant of a container, and annotations of the pod that record it.

        *position*: of the container in the annotations. *parts*: its shares with their cards. *token*: of a container
        that may have run before, whose directory is kept; a new one by default. *variables*: those by which its limits
        are chosen, by default those in its specification. *durable*: as in `Host.write_limits`.
        Creates its MIG instances, or the directory of its processes. Raises: Rejected; HostError; ClusterError
        if the API server does not answer; HamiError of the driver.
        """
        cards = [card for card, _ in parts]
        is_kept, token = token is not None, token or self._token()
        if self._mig is not None:
            instances, annotations = self._mig.prepare(pod, position, [share for _, share in parts])
            return instances_grant(self._config, self.host, cards, instances, token), annotations
        if variables is None:
            variables = self.variables(pod.ref, container)
        limits = container_limits(
            self._config, parts, variables, self._context_bytes, self._cores_most(pod)
        )
        facts = self.host.facts(limited=True, cards=cards)
        own = str(self.host.prepare(pod.ref.uid, container, keep=is_kept))
        self.host.write_limits(pod.ref.uid, container, token, limits, keep=is_kept, durable=durable)
        grant = shares_grant(self._config, parts, facts, own=own, token=token, variables=variables)
        return grant, {}

    def build_instances(
        self, wanted: Sequence[MigAllocation], cards: Mapping[str, Card]
    ) -> tuple[Grant, list[Instance]]:
        """Returns the grant of a container that gets the instances of a claim, and the instances.

        They are made as by `DynamicMig.prepare_claimed`. *cards*: by UUID. Raises: Rejected, also on a node
        without MIG; HostError; HamiError of the driver.
        """
        if self._mig is None:
            raise Rejected("this node makes no MIG instances: its mode is not mig")
        instances = self._mig.prepare_claimed(wanted)
        grant = instances_grant(
            self._config, self.host, [cards[item.gpu] for item in wanted], instances, self._token()
        )
        return grant, instances

    def destroy_unused_instances(self) -> None:
        """Destroys the MIG instances that nobody holds, if this node makes any. Logs what fails."""
        try:
            if self._mig is not None:
                self._mig.reconcile()
        except HamiError as error:
            log.warning("MIG instances not reconciled", extra={"error": error})

    def _cores_most(self, pod: Pod) -> int | None:
        """Returns the limit of cores of *pod*; ``None`` if it has none, or one that cannot be read: whoever may edit
        the pod can write it."""
        limit = pod_cores_limit(pod.annotations)
        if limit is None and CORES_LIMIT in pod.annotations:
            log.warning(
                "annotation ignored",
                extra={
                    "pod": str(pod.ref),
                    "annotation": CORES_LIMIT,
                    "value": pod.annotations[CORES_LIMIT][:_SHOWN],
                },
            )
        return limit

    def variables(self, ref: PodRef, container: str) -> Mapping[str, str]:
        """Returns the literal variables in the specification of a container. Raises: ClusterError."""
        # they never change, so a late watch may tell them
        if self._node_pods is not None:
            env = self._node_pods.environment(ref.uid, container)
            if env is not None:
                return env
        return self._cluster.environment(ref, container)


def instances_grant(
    config: PluginConfig,
    host: Host,
    cards: Sequence[Card],
    instances: Sequence[Instance | MigDevice],
    token: str,
) -> Grant:
    """Returns the grant of a container that gets MIG *instances*, each on its card among *cards*. *token*: a unique
    text. Raises: HostError."""
    facts = host.facts(
        limited=False,
        cards=cards,
        instances=[
            (card.minor, instance.gpu_instance, instance.compute_instance)
            for card, instance in zip(cards, instances, strict=True)
        ],
    )
    return visible_devices_grant(
        config, [instance.uuid for instance in instances], cards, facts, token
    )
