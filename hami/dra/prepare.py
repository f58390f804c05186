"""Prepares claims of pods: writes what their containers get, under the name of the claim and the request.

The kubelet prepares the claims of a pod before its sandbox is made, and gives a container the CDI devices of the
requests that it names. So each request of a claim is for one container, whose name it has. What is prepared is what
specifications say: no other file is needed, and none is left when a reboot has emptied their folder.
Source of the names of requests for extended resources: Kubernetes v1.37, extendeddynamicresources.go.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from hami.codec.allocation import parse_shares
from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest
from hami.codec.device_requests import claim_sources
from hami.codec.documents import entries
from hami.codec.keys import CLAIM_REQUEST, GPU_ALLOCATED
from hami.codec.mig import MigAllocation
from hami.codec.own_claims import booked_requests, differing_containers
from hami.codec.slices import device_name, mig_devices, pool_name
from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.devices.registration import VENDOR, devices
from hami.dra.guard import PreparedPlacement, PreparedRequest, PreparedShare, excess, parse_prepared, render_prepared
from hami.errors import AllocationRefused, HostError, MalformedInput
from hami.kube.cluster import Cluster
from hami.kube.dynamic_resources import DynamicResources
from hami.model import Device, Partition, Pod, Share
from hami.node import container_specs
from hami.node.container_specs import CLAIM, ContainerSpecs
from hami.node.grant import overridable_env
from hami.node.grant_builder import GrantBuilder
from hami.node.host import MIN_AGE_S, Host
from hami.node.pods import NodePods
from hami.runtime.files import FileVersion
from hami.vendors.draft import PodDraft
from hami.vendors.nvidia import VISIBLE_VARIABLE, check_claiming

log = logging.getLogger(__name__)

_OF_EXTENDED_RESOURCE = re.compile(r"container-([0-9]{1,4})-request-[0-9]{1,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """A device of a prepared claim, as the kubelet knows it. *cdi_device*: what containers of the request get, empty
    unless it is the first device of the request."""

    request: str
    pool: str
    device: str
    share_id: str
    cdi_device: str


class ClaimPreparer:
    """The claims of one node. Threads and processes may share its files."""

    def __init__(self, config: PluginConfig, cluster: Cluster, resources: DynamicResources, grants: GrantBuilder,
                 host: Host, specs: ContainerSpecs, *, node_pods: NodePods | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """*specs*: those of the kind `CLAIM`."""
        self._config = config
        self._cluster = cluster
        self._resources = resources
        self._grants = grants
        self._host = host
        self._specs = specs
        self._prepared = PreparedRequests(specs)
        self._node_pods = node_pods
        self._clock = clock
        self._orphaned_at: dict[str, float] = {}  # by specification, since when its claim is gone

    def prepare(self, namespace: str, name: str, uid: str) -> list[PreparedDevice]:
        """Prepares exactly this claim; what is prepared already stays as it is, since containers may use it.

        In strict mode, nothing is prepared for a pod that could lift its limits: the webhook does not know whose the
        devices of a claim are.
        Raises: AllocationRefused with the reason; MalformedInput; HostError; ClusterError.
        """
        claim = self._resources.claim(namespace, name)
        if claim is None or claim.uid != uid:
            raise AllocationRefused(f"claim {namespace}/{name} {'does not exist' if claim is None else 'is another'}")
        if not claim.requests:
            raise AllocationRefused(f"claim {namespace}/{name} has no devices of this driver")
        pod, snapshot = self._pod(claim), self._grants.inventory.snapshot()
        cards = {card.uuid: card for card in snapshot.cards}
        offered = {device.uuid: device for device in devices(snapshot, self._config)}
        claim = _as_booked(claim, pod, offered)
        places = _places(offered.values())
        wanted = [self._wanted(claim, request, pod, places) for request in claim.requests]
        if len({record.container for record in wanted}) < len(wanted):
            raise AllocationRefused(f"claim {namespace}/{name} has several requests for one container")
        if self._config.nvidia.strict:
            self._check_strictly(claim, pod, {record.container for record in wanted})
        with self._specs.exclusive():
            prepared = self.prepared()
            missing = [pair for pair in zip(claim.requests, wanted) if pair[1] not in prepared
                       or not self._host.has_limits(pod.ref.uid, pair[1].container)]
            if missing and (reason := excess(wanted, prepared, offered)):
                raise AllocationRefused(reason)
            for request, record in missing:
                if record.instances:
                    self._write_instances(_with_instances(record, prepared), cards)
                else:
                    self._write(pod, request, record, cards)
        return [PreparedDevice(request=request.name, pool=device.pool, device=device.device, share_id=device.share_id,
                               cdi_device=container_specs.device_name(record.name, CLAIM) if place == 0 else "")
                for request, record in zip(claim.requests, wanted) for place, device in enumerate(request.devices)]

    def unprepare(self, uid: str) -> None:
        """Removes what was prepared for a claim, which may be gone, by whatever process. Raises: HostError."""
        with self._specs.exclusive():
            names = [name for name in self._specs.names() if name.startswith(f"{uid}_")]
            for name in names:
                self._specs.remove(name)
        if names:
            self._grants.destroy_unused_instances()

    def prepared(self) -> list[PreparedRequest]:
        """Returns what is prepared. Raises: HostError."""
        return self._prepared.all()

    def sweep(self) -> None:
        """Removes what is prepared for claims that are gone since some minutes: containers of a pod that was deleted by
        force may still run. Raises: HostError; ClusterError."""
        gone = {request.name for request in self.prepared() if self._is_gone(request)}
        self._orphaned_at = {name: self._orphaned_at.get(name, self._clock()) for name in gone}
        for name, since in self._orphaned_at.items():
            if self._clock() - since > MIN_AGE_S:
                self._specs.remove(name)  # a MIG instance goes with the next cleanup
                log.info("specification of a claim that is gone was removed", extra={"specification": name})

    def _is_gone(self, request: PreparedRequest) -> bool:
        if self._node_pods is not None and self._node_pods.pod(request.pod) is not None:
            return False
        try:
            claim = self._resources.claim(request.namespace, request.claim)
        except MalformedInput:
            return False
        return claim is None or claim.uid != request.uid or not claim.requests

    def _pod(self, claim: AllocatedClaim) -> Pod:
        """Returns the pod for which a claim is reserved."""
        if len(claim.pods) != 1:
            raise AllocationRefused(f"claim {claim.namespace}/{claim.name} is reserved for {len(claim.pods)} pods, "
                                    "expected one: with a template, each pod gets a claim of its own")
        (ref,) = claim.pods
        pod = self._node_pods.pod(ref.uid) if self._node_pods is not None else None
        if pod is None:
            pod = self._cluster.pod(ref.namespace, ref.name)
        if pod is None or pod.ref.uid != ref.uid or pod.node_name != self._config.node:
            raise AllocationRefused(f"pod {ref}, for which claim {claim.name} is reserved, is not on this node")
        return pod

    def _wanted(self, claim: AllocatedClaim, request: ClaimedRequest, pod: Pod,
                places: Mapping[str, tuple[Device, Partition | None]]) -> PreparedRequest:
        """Returns what a request of the claim needs. *places*: see `_places`."""
        about = f"request {request.name} of claim {claim.namespace}/{claim.name}"
        if request.admin:
            raise AllocationRefused(f"{about}: adminAccess is not supported")
        if (container := _container_of(request.name, pod)) is None:
            raise AllocationRefused(f"{about}: pod {pod.ref.name} has no container {request.name}; a request must have "
                                    "the name of the container that uses it")
        for device in request.devices:
            if device.pool != pool_name(self._config.node) or device.device not in places:
                raise AllocationRefused(f"{about}: device {device.pool}/{device.device} is not on this node")
        shares = tuple(_share(device, *places[device.device]) for device in request.devices)
        if (request.priority, request.core_policy) != (None, None) and any(share.placement for share in shares):
            raise AllocationRefused(f"{about}: priority and corePolicy are for shares of GPUs, not for MIG instances")
        return PreparedRequest(namespace=claim.namespace, claim=claim.name, uid=claim.uid, request=request.name,
                               pod=pod.ref.uid, container=container, shares=shares)

    def _check_strictly(self, claim: AllocatedClaim, pod: Pod, containers: Collection[str]) -> None:
        """Checks all containers of *pod*: those that use *claim*, among them *containers*, as if they requested GPUs.

        Raises: PodRefused; MalformedInput; ClusterError.
        """
        document = self._cluster.specification(pod.ref)
        names = {source.name for source in claim_sources(document) if source.claim == claim.name}
        for draft in PodDraft(document).containers:
            used = {entry.get("name") for entry in entries((draft.wire.get("resources") or {}).get("claims"))}
            check_claiming(draft, self._config.nvidia, is_claiming=draft.name in containers or bool(used & names))

    def _write(self, pod: Pod, request: ClaimedRequest, record: PreparedRequest, cards: Mapping[str, Card]) -> None:
        """Writes the directory of a container and its specification. *cards*: by UUID."""
        variables = dict(self._grants.variables(pod.ref, record.container))
        if pod.claim != record.claim and CLAIM_REQUEST not in pod.annotations:
            variables.pop(VISIBLE_VARIABLE, None)  # strict mode hides what no resource requests, so it is no wish
        chosen = {name: str(value) for name, value in (
            ("CUDA_TASK_PRIORITY", request.priority), ("GPU_CORE_UTILIZATION_POLICY", request.core_policy))
            if value is not None}
        parts = [(cards[share.uuid], Share(share.uuid, VENDOR, share.memory_mib, share.cores))
                 for share in record.shares]
        # not forced to disk while others wait: a node that starts again has no specification, so all is written again
        grant, _ = self._grants.build(pod, record.container, 0, parts, variables={**variables, **chosen}, durable=False)
        # variables of a CDI device replace those of the container, which may choose these itself
        own = overridable_env(self._config, len(parts)).keys() & variables.keys()
        self._specs.write_grant(record.name, replace(grant, env={**grant.env, **render_prepared(record)}), without=own)

    def _write_instances(self, record: PreparedRequest, cards: Mapping[str, Card]) -> None:
        """Makes the MIG instances of a container that are missing, and writes its specification. *cards*: by UUID."""
        grant, uuids = self._grants.build_instances(record.instances, cards)
        made = record.with_instances(uuids)
        self._specs.write_grant(record.name, replace(grant, env={**grant.env, **render_prepared(made)}))


def _places(offered: Iterable[Device]) -> dict[str, tuple[Device, Partition | None]]:
    """Returns the devices by their names in slices, and the placements of those that are MIG instances."""
    places: dict[str, tuple[Device, Partition | None]] = {}
    for device in offered:
        if device.is_partitioned:
            possible = mig_devices(device.uuid, device.mig_profiles)
            places |= {name: (device, placement) for name, (_, placement) in possible.items()}
        else:
            places[device_name(device.uuid)] = device, None
    return places


def _share(claimed: ClaimedDevice, device: Device, placement: Partition | None) -> PreparedShare:
    return PreparedShare(
        uuid=device.uuid, memory_mib=claimed.memory_mib, cores=claimed.cores, share_milli=claimed.share_milli,
        placement=PreparedPlacement(placement.name, placement.start, placement.size) if placement is not None else None)


def _with_instances(record: PreparedRequest, prepared: Iterable[PreparedRequest]) -> PreparedRequest:
    """Returns *record* with the UUIDs that it has among what is *prepared*: processes may use these instances."""
    return next((other for other in prepared if other.name == record.name and other.with_instances() == record),
                record)


def _as_booked(claim: AllocatedClaim, pod: Pod, offered: Mapping[str, Device]) -> AllocatedClaim:
    """Returns *claim* with what its pod holds. Where the scheduler has made it, the annotations of the pod decide: each
    attempt to bind the pod writes the claim, and only one of them succeeds. *offered*: the devices of the node by UUID.
    """
    if pod.claim != claim.name or not (text := pod.annotations.get(GPU_ALLOCATED)):
        return claim
    booked = parse_shares(GPU_ALLOCATED, text)
    requests = booked_requests(pod, pod.node_name, booked, offered)
    if not differing_containers(claim, pod, booked):
        return claim
    log.warning("claim differs from the annotations of its pod, which decide", extra={
        "claim": f"{claim.namespace}/{claim.name}", "pod": pod.ref})
    return replace(claim, requests=requests)


def _container_of(request: str, pod: Pod) -> str | None:
    """Returns the container for which a request is: that of its name, or the one whose extended resource kube-scheduler
    has turned into a claim; ``None`` if there is none."""
    names = [container.name for container in pod.containers]  # also kube-scheduler counts init containers first
    if request in names:
        return request
    match = _OF_EXTENDED_RESOURCE.fullmatch(request)
    return names[int(match[1])] if match is not None and int(match[1]) < len(names) else None


class PreparedRequests:
    """The requests for which specifications were made. Files that have not changed since the last look are not read
    again: each names all files of the driver."""

    def __init__(self, specs: ContainerSpecs) -> None:
        self._specs = specs
        self._known: dict[str, tuple[FileVersion | None, PreparedRequest | None]] = {}  # replaced as a whole

    def all(self) -> list[PreparedRequest]:
        """Returns them, by name. Raises: HostError."""
        known, found = self._known, {}
        for name in sorted(self._specs.names()):
            version = self._specs.version(name)
            found[name] = (known[name] if name in known and known[name][0] == version
                           else (version, parse_prepared(self._specs.read(name))))
        self._known = found
        return [request for name, (_, request) in found.items() if request is not None and request.name == name]

    def instances(self) -> list[MigAllocation]:
        """Returns the MIG instances of all. Raises: HostError, also if a specification cannot be read, which may have
        some."""
        requests = self.all()
        if unreadable := [name for name, (version, request) in self._known.items() if request is None and version]:
            raise HostError(f"the specification {unreadable[0]} of a claim cannot be read")
        return [instance for request in requests for instance in request.instances]
