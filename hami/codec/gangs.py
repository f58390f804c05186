"""PodGroups, of Kubernetes or of the coscheduling plugin: how many pods are placed together, and which end together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hami.codec.documents import decode
from hami.codec.pods import GROUP_LABEL
from hami.model import Pod, PodGroupRef

KUBERNETES = "/apis/scheduling.k8s.io/v1beta1"
COMPOSITE = "/apis/scheduling.k8s.io/v1alpha3"
PLUGIN = "/apis/scheduling.x-k8s.io/v1alpha1"


class _Gang(msgspec.Struct, rename="camel"):
    min_count: int | None = None


class _SchedulingPolicy(msgspec.Struct):
    gang: _Gang | None = None


class _Chosen(msgspec.Struct):
    """A member of a union without fields of its own."""


class _DisruptionMode(msgspec.Struct):
    all: _Chosen | None = None


class _PodGroupSpec(msgspec.Struct, rename="camel"):
    """The specification of a PodGroup or CompositePodGroup. *min_member*: of the coscheduling plugin; the rest is of
    Kubernetes."""

    scheduling_policy: _SchedulingPolicy | None = None
    min_member: int | None = None
    disruption_mode: _DisruptionMode | None = None
    parent_composite_pod_group_name: str | None = None


class _PodGroup(msgspec.Struct):
    spec: _PodGroupSpec = msgspec.field(default_factory=_PodGroupSpec)


_POD_GROUP = msgspec.json.Decoder(_PodGroup)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """The parts of a PodGroup or CompositePodGroup that HAMi reads.

    *min_count*: how many pods are placed together; ``None`` if it does not say. *is_disrupted_whole*: all of its pods
    end together, also those of the groups below it. *parent*: the CompositePodGroup above it, empty without one.
    """

    min_count: int | None
    is_disrupted_whole: bool
    parent: str


def pod_group_ref(namespace: str, group: str, labels: Mapping[str, str]) -> PodGroupRef:
    """The PodGroup with the name *group* that a pod with *labels* belongs to."""
    return PodGroupRef(namespace, group, labels.get(GROUP_LABEL) == group)


def pod_group_of(pod: Pod) -> PodGroupRef:
    """The PodGroup of *pod*, with an empty name if it has none."""
    return pod_group_ref(pod.ref.namespace, pod.group, pod.labels)


def pod_group_apis(ref: PodGroupRef) -> tuple[str, ...]:
    """Returns the paths of the APIs of which a PodGroup may be, most likely first."""
    return (PLUGIN, KUBERNETES) if ref.is_labeled else (KUBERNETES, PLUGIN)


def parse_pod_group(data: bytes, api: str) -> GroupSpec:
    """The PodGroup or CompositePodGroup in JSON, as *api* has it. Raises: MalformedInput.

    Where it does not say how it is disrupted, its pods end one by one, as for kube-scheduler. Those of a PodGroup of
    the coscheduling plugin, which cannot say it, end together.
    Source: k8s.io/api v0.37, scheduling/v1beta1 and v1alpha3; k8s.io/kubernetes, pkg/scheduler/framework/preemption.
    """
    spec = decode("PodGroup", _POD_GROUP, data).spec
    if api == PLUGIN:
        return GroupSpec(min_count=spec.min_member, is_disrupted_whole=True, parent="")
    gang = spec.scheduling_policy.gang if spec.scheduling_policy is not None else None
    return GroupSpec(
        min_count=gang.min_count if gang is not None else None,
        is_disrupted_whole=spec.disruption_mode is not None
        and spec.disruption_mode.all is not None,
        parent=spec.parent_composite_pod_group_name or "",
    )
