"""Prepares claims of pods: writes what their containers get, under the name of the claim and the request.

The kubelet prepares the claims of a pod before its sandbox is made, and gives a container the CDI devices of the
requests that it uses. What is prepared is what specifications say: no other file is needed, and none is left when a
reboot has emptied their folder.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hami.codec.allocation import parse_shares
from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest
from hami.codec.device_requests import UsedClaims, used_claims
from hami.codec.hami_claims import booked_requests, differing_containers
from hami.codec.keys import GPU_ALLOCATED
from hami.codec.mig import MigAllocation
from hami.codec.slices import card_of, device_name, mig_devices, pool_name
from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.devices.registration import VENDOR, devices
from hami.dra.guard import (
    PreparedPlacement,
    PreparedRequest,
    PreparedShare,
    excess,
    parse_prepared,
    render_prepared,
)
from hami.dra.recipients import recipients
from hami.errors import DeviceMissing, HostError, MalformedInput, Rejected
from hami.kube.claims import DynamicResources
from hami.kube.cluster import Cluster
from hami.model import Device, MigProfile, Partition, Pod, Share
from hami.node import container_specs
from hami.node.container_specs import CLAIM, ContainerSpecs
from hami.node.grant import Grant, overridable_env
from hami.node.grant_builder import GrantBuilder
from hami.node.host import MIN_AGE_S
from hami.node.instances import given_instance
from hami.node.memory_wall import MemoryWall
from hami.node.pods import NodePods
from hami.node.refusals import CLAIM_REFUSALS, Refusals
from hami.runtime.files import FileVersion
from hami.vendors.draft import PodDraft
from hami.vendors.mig import with_places
from hami.vendors.nvidia import VISIBLE_VARIABLE, check_claiming

log = logging.getLogger(__name__)


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*specs*: those of the kind `CLAIM`."""
        self._config = config
        self._cluster = cluster
        self._resources = resources
        self._grants = grants
        self._specs = specs
        self._memory_wall = memory_wall
        self._prepared = PreparedRequests(specs)
        self._node_pods = node_pods
        self._clock = clock
        self._orphaned_at: dict[str, float] = {}  # by specification, since when its claim is gone
        self.refusals = Refusals(CLAIM_REFUSALS)

    def prepare(self, namespace: str, name: str, uid: str) -> list[PreparedDevice]:
        """Prepares exactly this claim; what is prepared already stays as it is, since containers may use it.

        In strict mode, nothing is prepared for a pod that could lift its limits: the webhook does not know whose the
        devices of a claim are.
        Raises: Rejected with the reason; MalformedInput; HostError; ClusterError.
        """
        claim = self._resources.claim(namespace, name)
        if claim is None or claim.uid != uid:
            raise Rejected(
                f"claim {namespace}/{name} {'does not exist' if claim is None else 'is another'}"
            )
        if not claim.requests:
            raise Rejected(f"claim {namespace}/{name} has no devices of this driver")
        pod = self._pod(claim)
        try:
            prepared = self._prepare(claim, pod)
        except Rejected as error:
            self.refusals.count(pod.ref, error)
            raise
        self.refusals.clear(pod.ref)
        return prepared

    def _prepare(self, claim: AllocatedClaim, pod: Pod) -> list[PreparedDevice]:
        """Prepares *claim* for *pod*, and returns what the kubelet is told: see `prepare`."""
        snapshot = self._grants.inventory.snapshot()
        cards = {card.uuid: card for card in snapshot.cards}
        offered = {device.uuid: device for device in devices(snapshot, self._config)}
        claim = _as_booked(claim, pod, offered)
        places = _places(offered.values())
        used = self._used_claims(pod)
        uses = {
            container: claims[claim.name]
            for container, claims in used.items()
            if claim.name in claims
        }
        containers = recipients(claim, pod, uses)
        target = [
            _target(claim, request, pod, containers[request.name], places)
            for request in claim.requests
        ]
        claiming = {*uses, *containers.values()} - {""}
        if self._config.nvidia.strict:
            self._check_strictly(pod, claiming)
        self._write_missing(claim, pod, target, used, claiming, cards, offered)
        return _prepared_devices(claim, target)

    def _write_missing(
        self,
        claim: AllocatedClaim,
        pod: Pod,
        target: Sequence[PreparedRequest],
        used: UsedClaims,
        claiming: Collection[str],
        cards: Mapping[str, Card],
        offered: Mapping[str, Device],
    ) -> None:
        """Writes what *target* needs and is not prepared yet. *used*, *claiming*: see `_second_claim`."""
        joint = _by_container(claim, target)
        with self._specs.exclusive():
            prepared = self.prepared()
            missing = {record.container for record in target if self._is_missing(record, prepared)}
            if missing:
                reason = _second_claim(claim, used, claiming, pod, prepared)
                reason = reason or excess(target, prepared, offered)
                if reason:
                    raise Rejected(reason)
            for container in sorted(missing):
                self._write(pod, container, joint[container], prepared, cards, offered)

    def _is_missing(self, record: PreparedRequest, prepared: Collection[PreparedRequest]) -> bool:
        """Reports whether what *record* says has to be written."""
        if record not in prepared:
            return True
        return bool(record.container) and not self._grants.host.has_limits(
            record.pod, record.container
        )

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
        self._specs.remove_leftovers()
        gone = {request.name for request in self.prepared() if self._is_gone(request)}
        self._orphaned_at = {name: self._orphaned_at.get(name, self._clock()) for name in gone}
        for name, since in self._orphaned_at.items():
            if self._clock() - since > MIN_AGE_S:
                self._specs.remove(name)  # a MIG instance goes with the next cleanup
                log.info(
                    "specification of a claim that is gone was removed",
                    extra={"specification": name},
                )

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
            raise Rejected(
                f"claim {claim.namespace}/{claim.name} is reserved for {len(claim.pods)} pods, "
                "expected one: with a template, each pod gets a claim of its own"
            )
        (ref,) = claim.pods
        pod = self._node_pods.pod(ref.uid) if self._node_pods is not None else None
        if pod is None:
            pod = self._cluster.pod(ref.namespace, ref.name)
        if pod is None or pod.ref.uid != ref.uid or pod.node_name != self._config.node:
            raise Rejected(
                f"pod {ref}, for which claim {claim.name} is reserved, is not on this node"
            )
        return pod

    def _used_claims(self, pod: Pod) -> UsedClaims:
        """Returns the claims that the containers of *pod* use. Raises: ClusterError; MalformedInput."""
        # they do not change on a node, so a late watch may tell them
        known = self._node_pods.claims(pod.ref.uid) if self._node_pods is not None else None
        return used_claims(self._cluster.specification(pod.ref)) if known is None else known

    def _check_strictly(self, pod: Pod, claiming: Collection[str]) -> None:
        """Checks all containers of *pod*: those that are *claiming* as if they requested GPUs.

        Raises: PodRefused; MalformedInput; ClusterError.
        """
        for draft in PodDraft(self._cluster.specification(pod.ref)).containers:
            check_claiming(draft, self._config.nvidia, is_claiming=draft.name in claiming)

    def _write(
        self,
        pod: Pod,
        container: str,
        joint: Sequence[tuple[ClaimedRequest, PreparedRequest]],
        prepared: Iterable[PreparedRequest],
        cards: Mapping[str, Card],
        offered: Mapping[str, Device],
    ) -> None:
        """Writes the directory of *container*, and a specification for each request that it uses, all of which say the
        same. Without a container, they only say that the devices are taken. *cards*, *offered*: by UUID."""
        records = [record for _, record in joint]
        grant, overridden = Grant(), frozenset[str]()
        if container and records[0].instances:
            records = [_with_instances(record, prepared) for record in records]
            grant, records = self._with_new_instances(pod, container, records, cards, offered)
        elif container:
            grant, overridden = self._limited(pod, container, joint, cards)
        for record in records:
            self._specs.write_grant(
                record.name,
                replace(grant, env={**grant.env, **render_prepared(record)}),
                without=overridden,
            )

    def _with_new_instances(
        self,
        pod: Pod,
        container: str,
        records: Sequence[PreparedRequest],
        cards: Mapping[str, Card],
        offered: Mapping[str, Device],
    ) -> tuple[Grant, list[PreparedRequest]]:
        """Makes the MIG instances of *records*, and writes the directory of *container*; returns its grant, and the
        records with the UUIDs of these instances."""
        places: list[MigAllocation] = []
        for record in records:
            places += record.instances
        grant, instances = self._grants.build_instances(places, cards)
        profiles: dict[tuple[str, str], MigProfile] = {}
        for card, device in offered.items():
            profiles |= {(card, profile.name): profile for profile in device.mig_profiles}
        self._grants.host.write_instances(
            pod.ref.uid,
            container,
            (
                given_instance(instance, profiles[place.gpu, place.partition.name])
                for instance, place in zip(instances, places)
            ),
        )
        uuids = iter([instance.uuid for instance in instances])
        return grant, [
            record.with_instances(itertools.islice(uuids, len(record.shares))) for record in records
        ]

    def _limited(
        self,
        pod: Pod,
        container: str,
        joint: Sequence[tuple[ClaimedRequest, PreparedRequest]],
        cards: Mapping[str, Card],
    ) -> tuple[Grant, frozenset[str]]:
        """Writes the directory of a container that shares cards; returns its grant, and the variables of it that the
        container sets itself."""
        request, record = joint[0]  # all have the same parameters
        variables = dict(self._grants.variables(pod.ref, container))
        if pod.claim != record.claim:
            # strict mode hides what no resource requests, so it is no wish
            variables.pop(VISIBLE_VARIABLE, None)
        parameters = {}
        if request.priority is not None:
            parameters["CUDA_TASK_PRIORITY"] = str(request.priority)
        if request.core_policy is not None:
            parameters["GPU_CORE_UTILIZATION_POLICY"] = str(request.core_policy)
        shares: list[PreparedShare] = []
        for _, other in joint:
            shares += other.shares
        parts = [(cards[share.uuid], share) for share in _sums(shares)]
        # not forced to disk while others wait: a node that starts again has no specification, so all is written again
        grant, _ = self._grants.build(
            pod, container, 0, parts, variables={**variables, **parameters}, durable=False
        )
        grant = self._memory_wall.with_hook(grant, parts)
        # variables of a CDI device replace those of the container, which may choose these itself
        return grant, frozenset(overridable_env(self._config, len(parts)).keys() & variables.keys())


def _target(
    claim: AllocatedClaim,
    request: ClaimedRequest,
    pod: Pod,
    container: str,
    places: Mapping[str, tuple[Device, Partition | None]],
) -> PreparedRequest:
    """Returns what a request of the claim needs, for *container*. *places*: see `_places`."""
    about = f"request {request.name} of claim {claim.namespace}/{claim.name}"
    if request.admin:
        raise Rejected(f"{about}: adminAccess is not supported")
    for device in request.devices:
        text = f"{about}: device {device.pool}/{device.device} is not on this node"
        if device.pool != pool_name(pod.node_name):
            raise Rejected(text)
        if device.device not in places:
            raise DeviceMissing(text, card_of(device.device))
    shares = tuple(_share(device, *places[device.device]) for device in request.devices)
    has_parameters = (request.priority, request.core_policy) != (None, None)
    if has_parameters and any(share.placement for share in shares):
        raise Rejected(
            f"{about}: priority and corePolicy are for shares of GPUs, not for MIG instances"
        )
    return PreparedRequest(
        namespace=claim.namespace,
        claim=claim.name,
        uid=claim.uid,
        request=request.name,
        pod=pod.ref.uid,
        container=container,
        shares=shares,
    )


def _prepared_devices(
    claim: AllocatedClaim, records: Sequence[PreparedRequest]
) -> list[PreparedDevice]:
    """Returns the devices of *claim*, whose requests have these *records*."""
    prepared: list[PreparedDevice] = []
    for request, record in zip(claim.requests, records):
        cdi_device = container_specs.device_name(record.name, CLAIM)
        for device in request.devices:
            prepared.append(
                PreparedDevice(
                    request=request.name,
                    pool=device.pool,
                    device=device.device,
                    share_id=device.share_id,
                    cdi_device=cdi_device,
                )
            )
            cdi_device = ""  # one device has the specification of the request
    return prepared


def _by_container(
    claim: AllocatedClaim, records: Iterable[PreparedRequest]
) -> dict[str, list[tuple[ClaimedRequest, PreparedRequest]]]:
    """Returns the requests of *claim*, each with its record of *records*, by container.

    Raises: Rejected if one container cannot have all of its requests.
    """
    joint: dict[str, list[tuple[ClaimedRequest, PreparedRequest]]] = {}
    for request, record in zip(claim.requests, records):
        joint.setdefault(record.container, []).append((request, record))
    for container, pairs in joint.items():
        if not container:
            continue
        about = f"claim {claim.namespace}/{claim.name}: container {container} uses"
        if len({bool(record.instances) for _, record in pairs}) > 1:
            raise Rejected(f"{about} shares of GPUs and MIG instances")
        if len({(request.priority, request.core_policy) for request, _ in pairs}) > 1:
            raise Rejected(f"{about} requests with different parameters")
    return joint


def _sums(shares: Iterable[PreparedShare]) -> list[Share]:
    """Returns *shares* with those of one card added up. No cores: no limit."""
    sums: dict[str, Share] = {}
    for share in shares:
        earlier = sums.get(share.uuid)
        if earlier is None:
            sums[share.uuid] = Share(share.uuid, VENDOR, share.memory_mib, share.cores)
            continue
        cores = 0
        if earlier.cores and share.cores:
            cores = earlier.cores + share.cores
        sums[share.uuid] = replace(
            earlier, memory_mib=earlier.memory_mib + share.memory_mib, cores=cores
        )
    return list(sums.values())


def _second_claim(
    claim: AllocatedClaim,
    used: UsedClaims,
    claiming: Collection[str],
    pod: Pod,
    prepared: Iterable[PreparedRequest],
) -> str:
    """Returns why the containers *claiming* of *pod* cannot have *claim*: one of them uses another claim that is
    prepared, whose specification says something else. *used*: what all containers use."""
    for other in prepared:
        if other.pod != pod.ref.uid or other.uid == claim.uid:
            continue
        users = {name for name, claims in used.items() if other.claim in claims}
        both = (users | {other.container}).intersection(claiming)
        if both:
            return (
                f"container {min(both)} of pod {pod.ref.name} uses claims {other.claim} and {claim.name}: it "
                "can use several requests of one claim, but not several claims"
            )
    return ""


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
        uuid=device.uuid,
        memory_mib=claimed.memory_mib,
        cores=claimed.cores,
        share_milli=claimed.share_milli,
        placement=PreparedPlacement(placement.name, placement.start, placement.size)
        if placement is not None
        else None,
    )


def _with_instances(
    record: PreparedRequest, prepared: Iterable[PreparedRequest]
) -> PreparedRequest:
    """Returns *record* with the UUIDs that it has among what is *prepared*: processes may use these instances."""
    return next(
        (
            other
            for other in prepared
            if other.name == record.name and other.with_instances() == record
        ),
        record,
    )


def _as_booked(claim: AllocatedClaim, pod: Pod, offered: Mapping[str, Device]) -> AllocatedClaim:
    """Returns *claim* with what its pod holds. Where the scheduler has made it, the annotations of the pod decide: each
    attempt to bind the pod writes the claim, and only one of them succeeds. *offered*: the devices of the node by UUID.
    """
    if pod.claim != claim.name or not (text := pod.annotations.get(GPU_ALLOCATED)):
        return claim
    booked = with_places(pod.annotations, parse_shares(GPU_ALLOCATED, text))
    try:
        requests = booked_requests(pod, pod.node_name, booked, offered)
    except MalformedInput as error:  # such as a device that is gone
        raise Rejected(f"claim {claim.namespace}/{claim.name}: {error}") from error
    if not differing_containers(claim, pod, booked):
        return claim
    log.warning(
        "claim differs from the annotations of its pod, which decide",
        extra={"claim": f"{claim.namespace}/{claim.name}", "pod": pod.ref},
    )
    return replace(claim, requests=requests)


class PreparedRequests:
    """The requests for which specifications were made. Files that have not changed since the last look are not read
    again: each names all files of the driver."""

    def __init__(self, specs: ContainerSpecs) -> None:
        self._specs = specs
        self._known: dict[
            str, tuple[FileVersion | None, PreparedRequest | None]
        ] = {}  # replaced as a whole

    def all(self) -> list[PreparedRequest]:
        """Returns them, by name. Raises: HostError."""
        known, found = self._known, {}
        for name in sorted(self._specs.names()):
            version = self._specs.version(name)
            found[name] = (
                known[name]
                if name in known and known[name][0] == version
                else (version, parse_prepared(self._specs.read(name)))
            )
        self._known = found
        return [
            request
            for name, (_, request) in found.items()
            if request is not None and request.name == name
        ]

    def instances(self) -> list[MigAllocation]:
        """Returns the MIG instances of all. Raises: HostError, also if a specification cannot be read, which may have
        some."""
        requests = self.all()
        if unreadable := [
            name for name, (version, request) in self._known.items() if request is None and version
        ]:
            raise HostError(f"the specification {unreadable[0]} of a claim cannot be read")
        return [instance for request in requests for instance in request.instances]
