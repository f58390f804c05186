"""Start-time mode: Allocate answers with a name only; what a container gets is decided when it starts.

The kubelet calls PreStartContainer after it has recorded which container owns the devices, and before the container is
created. So the container is known, not guessed: no node lock is needed, and an error is retried instead of failing the
pod. The name is random for each Allocate: device ids are no name, since the kubelet hands those of init containers on
to later containers of the same pod.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from hami.codec.keys import BIND_PHASE
from hami.devices.config import PluginConfig
from hami.devices.registration import MIG
from hami.errors import HamiError, Rejected
from hami.kube.cluster import Cluster
from hami.kube.retry import brief_retry, is_conflict
from hami.model import BindPhase, Pod
from hami.node.checkpoint import CheckpointEntry
from hami.node.container_specs import ContainerSpecs, device_name, spec_names
from hami.node.grant import Grant, overridable_env
from hami.node.grant_builder import GrantBuilder
from hami.node.host import Host
from hami.node.memory_wall import MemoryWall
from hami.node.pods import NodePods
from hami.node.refusals import Refusals
from hami.node.region_layout import REGION_SUFFIX
from hami.plugin import api_pb2 as api
from hami.plugin.container_match import (
    AllocateCall,
    ContainerMatch,
    cards_of,
    check_card_ids,
    container_shares,
    find_container,
    has_outstanding,
    preferred_ids,
    reason_not_allocated,
    waits_on,
)
from hami.vendors.spec import Vendor

log = logging.getLogger(__name__)


class StartTimeAllocator:
    """Hands out shares of the node's cards to containers that start. Threads may share it."""

    def __init__(
        self,
        config: PluginConfig,
        cluster: Cluster,
        vendor: Vendor,
        host: Host,
        grants: GrantBuilder,
        specs: ContainerSpecs,
        memory_wall: MemoryWall,
        *,
        node_pods: NodePods | None = None,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._vendor = vendor
        self._host = host
        self._grants = grants
        self._specs = specs
        self._memory_wall = memory_wall
        self._node_pods = node_pods
        self.refusals = Refusals()
        self._retry_conflicts = brief_retry(is_conflict, lambda seconds: None)

    def allocate(self, device_ids: Sequence[str]) -> Grant:
        """Returns a grant of nothing but a new CDI device, whose specification `pre_start` writes, and variables.

        Variables of a CDI device replace those in the specification of the container; these do not.
        Raises: Rejected.
        """
        try:
            check_card_ids(device_ids, self._grants.inventory.snapshot())
        except Rejected as error:
            log.warning("allocation failed", extra={"node": self._config.node, "error": error})
            raise
        env: dict[str, str] = {}
        if self._config.operating_mode != MIG:
            env = overridable_env(self._config, len(device_ids))
        return Grant(env=env, cdi_devices=(device_name(secrets.token_hex(8)),))

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Returns the ids that lie on the cards of the requesting container, if the watched pods leave no doubt.

        It is a hint, which keeps the kubelet's own records close to the truth. Never waits for the API server.
        """
        pods = self._node_pods.pods() if self._node_pods is not None else None
        if pods is None or not 0 < size <= len(available):
            return ()
        call = self._call(tuple(available[:size]), self._host.served(self._config.resource))
        match find_container(pods, None, call):
            case ContainerMatch(container=container):
                return preferred_ids(container.shares, available, must_include)
        return ()

    def pre_start(self, device_ids: Sequence[str]) -> None:
        """Writes the specifications of all containers that have exactly these devices: they belong to one pod.

        For containers that Allocate has served, does nothing unless their files are gone: a runtime would make
        directories in their place, so they are written again.
        Raises: Rejected with the reason; HostError; ClusterError; HamiError of the driver.
        """
        started = time.monotonic()
        try:
            pod, containers = self._retry_conflicts(self._pre_start, tuple(device_ids))
        except HamiError as error:
            log.warning(
                "container cannot start",
                extra={"node": self._config.node, "devices": sorted(device_ids), "error": error},
            )
            raise
        if pod is not None:
            log.info(
                "devices allocated",
                extra={
                    "pod": pod.ref,
                    "container": ",".join(containers),
                    "node": self._config.node,
                    "seconds": round(time.monotonic() - started, 4),
                },
            )

    def sweep(self) -> None:
        """Removes the specifications that no container has any more. Raises: HostError."""
        self._specs.remove_leftovers()
        names = self._specs.names()
        entries = self._host.allocations() if names else None
        if entries is None:
            return
        present: set[str] = set()
        for entry in entries:
            present.update(_names_in(entry))
        removed = self._specs.sweep(names, present)
        if removed:
            log.info("CDI specifications of containers removed", extra={"names": removed})

    def is_recorded(self) -> bool | None:
        """Reports whether the kubelet has containers of start-time mode; ``None`` if it has no containers at all, or
        its checkpoint cannot be read."""
        try:
            names = [_names_in(entry) for entry in self._entries()]
        except HamiError:
            return None
        return any(names) if names else None

    def has_lost_files(self) -> bool:
        """Reports whether files of containers that Allocate has served are gone, as after a restart of the node if they
        are in memory. `False` if the kubelet's checkpoint cannot be read."""
        try:
            return any(self._lost_tokens(entry) for entry in self._entries())
        except HamiError:
            return False

    def _pre_start(self, ids: tuple[str, ...]) -> tuple[Pod | None, list[str]]:
        entries = [entry for entry in self._entries() if entry.ids == set(ids)]
        if len({entry.pod_uid for entry in entries}) != 1:
            raise Rejected(
                f"the kubelet's checkpoint names {len(entries)} containers with the devices "
                f"{', '.join(sorted(ids))}, expected those of one pod"
            )
        wanted = [*self._wanted(entries)]
        if not wanted:
            return None, []
        pod = self._pod(entries[0].pod_uid)
        if reason := reason_not_allocated(pod, self._config.node, self._vendor):
            raise Rejected(f"pod {pod.ref} cannot be served: {reason}")
        return self._prepare_all(pod, wanted, ids)

    def _wanted(self, entries: Sequence[CheckpointEntry]) -> Iterator[tuple[str, str, str]]:
        """Yields container, name and token of what is to be written."""
        for entry in entries:
            for name in _names_in(entry):
                # the same name, the same text: a container that starts again keeps its counters, and its file is
                # not written
                yield entry.container, name, str(uuid.uuid5(uuid.NAMESPACE_OID, name))
        for entry in entries:
            for token in self._lost_tokens(entry):
                yield entry.container, "", token

    def _prepare_all(
        self, pod: Pod, wanted: Iterable[tuple[str, str, str]], ids: tuple[str, ...]
    ) -> tuple[Pod, list[str]]:
        """Prepares all that can be: an init container that has ended must not stop a later container."""
        written, errors = [], []
        for container, name, token in wanted:
            try:
                pod = self._prepare(pod, container, name, token, ids)
                written.append(container)
            except Rejected as error:
                errors.append(error)
        if not written:
            self.refusals.count(pod.ref, errors[0])
            raise errors[0]
        self.refusals.clear(pod.ref)
        return pod, written

    def _prepare(
        self, pod: Pod, container: str, name: str, token: str, ids: tuple[str, ...]
    ) -> Pod:
        """Writes the files of one container, and its specification if it has a *name*; returns the pod as it is now."""
        shares = container_shares(pod, self._config.resource, self._vendor)
        allocated = next((entry for entry in shares if entry.name == container), None)
        if allocated is None or len(allocated.shares) != len(ids):
            raise Rejected(
                f"pod {pod.ref} was allocated {len(allocated.shares) if allocated else 0} devices for container "
                f"{container}, but the kubelet chose {len(ids)}"
            )
        match = ContainerMatch(pod=pod, container=allocated, annotations={}, finished=True)
        parts = cards_of(match, self._call(ids), self._grants.inventory.snapshot(), self._config)
        grant, annotations = self._grants.build(
            pod, container, allocated.position, parts, token=token
        )
        if annotations:
            pod = self._cluster.annotate_pod(
                pod.ref, annotations, resource_version=pod.resource_version
            )
        if not name:
            return pod
        if self._config.operating_mode != MIG:
            grant = self._memory_wall.with_hook(grant, parts)
        self._specs.write_grant(name, grant, without=overridable_env(self._config, len(ids)))
        return pod

    def _lost_tokens(self, entry: CheckpointEntry) -> list[str]:
        """Returns the names of regions that are gone, as `_tokens_in`."""
        tokens = _tokens_in(entry)
        if tokens and self._host.has_limits(entry.pod_uid, entry.container):
            return []
        return tokens

    def _call(
        self, ids: tuple[str, ...], served: frozenset[tuple[str, str]] | None = None
    ) -> AllocateCall:
        return AllocateCall(
            node=self._config.node,
            resource=self._config.resource,
            ids=ids,
            vendor=self._vendor,
            served=served,
        )

    def _entries(self) -> list[CheckpointEntry]:
        entries = self._host.allocations()
        if entries is None:
            raise Rejected("the kubelet has no checkpoint of devices: check --kubelet-socket")
        return [entry for entry in entries if entry.resource == self._config.resource]

    def _pod(self, uid: str) -> Pod:
        """Returns the pod from the watch, which may be late but knows the allocation of the Binding."""
        pod = self._node_pods.pod(uid) if self._node_pods is not None else None
        if pod is None:
            pods = self._cluster.pods_on(self._config.node)
            pod = next((pod for pod in pods if pod.ref.uid == uid), None)
        elif self._config.operating_mode == MIG:
            # containers that start together record their instances on it
            latest = self._cluster.pod(pod.ref.namespace, pod.ref.name)
            pod = None
            if latest is not None and latest.ref.uid == uid:
                pod = latest
        if pod is None:
            raise Rejected(f"the API server knows no pod {uid} on this node: it was deleted")
        return pod


def needs_completion(pod: Pod, node: str, vendor: Vendor) -> bool:
    """Reports whether *pod* was bound by a scheduler that expects the device plugin to record the allocation."""
    is_allocating = pod.annotations.get(BIND_PHASE) == BindPhase.ALLOCATING
    if not is_allocating or not waits_on(pod, node):
        return False
    return has_outstanding(pod, vendor.annotations.to_allocate)


def _names_in(entry: CheckpointEntry) -> list[str]:
    """Returns the names of specifications in what the kubelet was answered for a container."""
    return spec_names(device.name for device in _answer(entry).cdi_devices)


def _tokens_in(entry: CheckpointEntry) -> list[str]:
    """Returns the names of shared regions, without suffix, in what the kubelet was answered for a container."""
    paths = (Path(mount.host_path) for mount in _answer(entry).mounts)
    return [path.stem for path in paths if path.suffix == REGION_SUFFIX]


def _answer(entry: CheckpointEntry) -> Any:
    """Returns the answer to Allocate; an empty one if it cannot be read."""
    try:
        return api.ContainerAllocateResponse.FromString(entry.answer or b"")
    except DecodeError:
        return api.ContainerAllocateResponse()
