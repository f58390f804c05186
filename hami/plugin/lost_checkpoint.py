"""Finds running pods of which the kubelet no longer knows that they have devices, and tells them.

A kubelet that has lost its checkpoint does not ask for the devices of a container that starts again where it must call
PreStartContainer: that fails first, with "no devices found allocated in local cache", for ever.
Source: Kubernetes v1.36 and v1.37, pkg/kubelet/cm/devicemanager/manager.go, GetDeviceRunContainerOptions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from hami.errors import MalformedInput
from hami.kube.events import EventRecorder
from hami.model import Pod
from hami.node.checkpoint import CheckpointEntry
from hami.plugin.container_match import container_shares
from hami.runtime.once import OncePerKey
from hami.vendors.spec import Vendor

MESSAGE = (
    "the kubelet has lost its checkpoint and no longer knows the devices of this pod: its containers run on, but "
    "cannot start again; delete the pod"
)


class LostCheckpoint:
    """Tells each pod once. For one thread."""

    def __init__(
        self,
        pods: Callable[[], Collection[Pod] | None],
        allocations: Callable[[], Iterable[CheckpointEntry] | None],
        resource: str,
        vendor: Vendor,
        events: EventRecorder,
    ) -> None:
        """*pods*: those of the node, ``None`` if not all are known. *allocations*: the kubelet's checkpoint, ``None``
        without one; may raise HostError."""
        self._pods = pods
        self._allocations = allocations
        self._resource = resource
        self._vendor = vendor
        self._events = events
        self._told = OncePerKey()

    def check(self) -> None:
        """Tells the pods whose devices the kubelet has forgotten. Raises: HostError."""
        pods = self._pods()  # before the checkpoint, which has a pod earlier
        entries = self._allocations()
        if not pods or entries is None:
            return
        known = set()
        for entry in entries:
            if entry.resource == self._resource:
                known.add(entry.pod_uid)
        for pod in pods:
            if self._is_forgotten(pod, known) and self._told.is_new(pod.ref.uid):
                self._events.record(pod.ref, "Warning", "DevicesForgotten", MESSAGE)

    def _is_forgotten(self, pod: Pod, known: Collection[str]) -> bool:
        """Reports whether *pod* runs with devices that are not *known*: uids of pods."""
        if pod.phase != "Running":
            return False
        if pod.deleting:
            return False
        if pod.ref.uid in known:
            return False
        try:
            return bool(container_shares(pod, self._resource, self._vendor))
        except MalformedInput:
            return False
