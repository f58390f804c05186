"""PodGroups, of Kubernetes or of the coscheduling plugin: how many pods are placed together or not at all."""

from __future__ import annotations

import msgspec

from hami.codec.documents import decode
from hami.codec.pods import GROUP_LABEL
from hami.model import Pod

_APIS = ("/apis/scheduling.k8s.io/v1beta1", "/apis/scheduling.x-k8s.io/v1alpha1")


class _Gang(msgspec.Struct, rename="camel"):
    min_count: int | None = None


class _SchedulingPolicy(msgspec.Struct):
    gang: _Gang | None = None


class _PodGroupSpec(msgspec.Struct, rename="camel"):
    """The specification of a PodGroup. *scheduling_policy*: of Kubernetes. *min_member*: of the coscheduling plugin."""

    scheduling_policy: _SchedulingPolicy | None = None
    min_member: int | None = None


class _PodGroup(msgspec.Struct):
    spec: _PodGroupSpec = msgspec.field(default_factory=_PodGroupSpec)


_POD_GROUP = msgspec.json.Decoder(_PodGroup)


def pod_group_apis(pod: Pod) -> tuple[str, ...]:
    """Returns the paths of the APIs of which the PodGroup of *pod* may be, most likely first; none without a group."""
    if not pod.group:
        return ()
    return _APIS if pod.labels.get(GROUP_LABEL) != pod.group else _APIS[::-1]


def parse_gang_size(data: bytes) -> int | None:
    """Returns how many pods the PodGroup in JSON places together; ``None`` if it does not say. Raises: MalformedInput.
    """
    spec = decode("PodGroup", _POD_GROUP, data).spec
    gang = spec.scheduling_policy.gang if spec.scheduling_policy is not None else None
    return gang.min_count if gang is not None else spec.min_member
