"""``hami audit --before-upgrade``: the workloads whose pods admission would refuse or warn of, once it
replaces that of HAMi.

The verdict is that of the scheduler's own admission, on each pod or template as its author wrote it. Pods that run stay
as they are: only new ones are admitted. Quotas are left out, since those of the cluster are the same before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hami.codec.documents import convert, places_in
from hami.codec.keys import IGNORE, WEBHOOK, is_scheduler_owned
from hami.codec.pods import NodePod, convert_pod, parse_node_pod
from hami.errors import MalformedInput
from hami.inspect.audit import Finding
from hami.inspect.cluster import InspectedCluster
from hami.inspect.manifests import TEMPLATE_KINDS, pod_source
from hami.inspect.tables import printable
from hami.node.limits import task_priority
from hami.plurals import counted
from hami.quantity import strict_integer
from hami.state.view import View
from hami.vendors.request import requests_devices

SHOWN_SUBJECTS = 3  # with the same problem
SHOWN_PROBLEMS = 50
_OWN_GROUPS = ("v1", "apps/v1", "batch/v1")  # whose TEMPLATE_KINDS are meant
_ENDED_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class AdmissionVerdict:
    """The verdict of admission about a pod. *problem*: why it is denied, empty if it is not. *warnings*: for its
    author."""

    problem: str = ""
    warnings: tuple[str, ...] = ()


Judge = Callable[[View, Mapping[str, Any], str], AdmissionVerdict]
"""Returns the verdict about a pod (as JSON) in a namespace of a cluster."""


class _Owner(msgspec.Struct, rename="camel"):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None
    deletion_timestamp: str | None = None


class _Spec(msgspec.Struct):
    replicas: int | None = None


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    phase: str | None = None
    conditions: list[_Condition] | None = None


def _is_end(condition: _Condition) -> bool:
    """Reports whether a Job with *condition* has finished."""
    return condition.type in ("Complete", "Failed") and condition.status == "True"


class _Object(msgspec.Struct, rename="camel"):
    """An object, as far as it tells whether it makes pods of its own."""

    kind: str
    api_version: str = ""
    metadata: _Meta = _Meta()
    spec: _Spec | None = None
    status: _Status | None = None

    @property
    def has_template(self) -> bool:
        """Reports whether its pods can be read from it."""
        return self.kind in TEMPLATE_KINDS and self.api_version in ("", *_OWN_GROUPS)

    @property
    def has_ended(self) -> bool:
        """Reports whether it makes no more pods: it is being deleted, a pod or Job that has finished, or the ReplicaSet
        of an earlier revision."""
        if self.metadata.deletion_timestamp is not None:
            return True
        if self.kind == "ReplicaSet" and self.owner and (self.spec or _Spec()).replicas == 0:
            return True
        status = self.status or _Status()
        if status.phase in _ENDED_PHASES:
            return True
        if self.kind != "Job":
            return False
        return any(map(_is_end, status.conditions or ()))

    def subject(self, namespace: str) -> str:
        """Returns the name of the workload: the object, or what has made it."""
        owner = self.owner
        if owner is not None and owner.kind != "Node":
            return f"{owner.kind.lower()} {namespace}/{owner.name}"
        return f"{self.kind.lower()} {namespace}/{self.metadata.name or 'unnamed'}"

    @property
    def owner(self) -> _Owner | None:
        """The object whose controller has made it."""
        for owner in self.metadata.owner_references or ():
            if owner.controller:
                return owner
        return None


@dataclass(slots=True)
class UpgradeCheck:
    """Takes objects, owners before what they own, and keeps what to change.

    *namespace*: of objects that name none. *ignored*: namespaces that the webhook does not see. An object may be passed
    twice.
    """

    cluster: InspectedCluster
    judge: Judge
    namespace: str = "default"
    ignored: Collection[str] = ()
    _workloads: set[str] = field(default_factory=set)
    _findings: set[Finding] = field(default_factory=set)
    _uids: set[str] = field(default_factory=set)

    def add_all(self, documents: Sequence[tuple[str, Any]]) -> set[str]:
        """Takes *documents* with their places, in any order. Returns the kinds of those that make no pods.

        Raises: MalformedInput for one that is no object of the API server.
        """

        def order(item: tuple[str, Any]) -> int:
            kind = item[1].get("kind") if isinstance(item[1], dict) else None
            if kind not in TEMPLATE_KINDS:
                return -1
            return TEMPLATE_KINDS.index(kind)

        others: set[str] = set()
        for place, document in sorted(documents, key=order):
            if not self.add(document, place):
                others.add(str(document["kind"]))
        return others

    def add(self, document: Any, place: str) -> bool:
        """Returns whether *document* is of a kind that makes pods. *place*: its name in errors.

        Raises: MalformedInput if it is no object of the API server.
        """
        item = convert(document, _Object, places_in(place))
        if not item.has_template:
            return False
        owner = item.owner
        is_covered = owner is not None and owner.uid in self._uids  # by the owner's template
        if item.metadata.uid:
            self._uids.add(item.metadata.uid)
        namespace = item.metadata.namespace or self.namespace
        if is_covered or item.has_ended or namespace in self.ignored:
            return True
        subject = item.subject(namespace)
        self._workloads.add(subject)
        finding = self._finding(item, document, place, namespace, subject)
        if finding is not None:
            self._findings.add(finding)
        return True

    @property
    def workloads(self) -> int:
        """The number of workloads so far."""
        return len(self._workloads)

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, sorted by rule and subject."""
        return sorted(self._findings)

    def _finding(
        self, item: _Object, document: Any, place: str, namespace: str, subject: str
    ) -> Finding | None:
        try:
            pod = pod_source(document, place).pod
            if item.kind == "Pod" and item.metadata.uid:
                pod = as_created(pod)
            if (pod["metadata"].get("labels") or {}).get(WEBHOOK) == IGNORE:
                return self._unseen(pod, subject)
        except MalformedInput as error:
            return Finding(
                "UnreadableObject", subject, str(error), "repair it: its pods are not checked"
            )
        verdict = self.judge(self.cluster.view, pod, namespace)
        if verdict.problem:
            return Finding(
                "Refused",
                subject,
                verdict.problem,
                "change it before the upgrade: pods that run stay, but no new ones are created",
            )
        urgent = self._urgent(pod, subject)
        if urgent is not None or not verdict.warnings:
            return urgent
        return Finding(
            "Warned",
            subject,
            verdict.warnings[0],
            "its pods are created, with this warning: check whether they are to keep it",
        )

    def _unseen(self, pod: Mapping[str, Any], subject: str) -> Finding | None:
        """Returns the finding on a pod that keeps itself from the webhook."""
        if not requests_devices(self.cluster.vendors, convert_pod(pod).containers):
            return None
        return Finding(
            "WebhookIgnored",
            subject,
            f"it requests devices, with the label {WEBHOOK}={IGNORE}: the "
            "policy hami-placement refuses it",
            "label its namespace instead, or bind the role "
            "hami-webhook-skipper to the account that creates its pods",
        )

    def _urgent(self, pod: Mapping[str, Any], subject: str) -> Finding | None:
        """Returns the finding on a pod that has priority 0 on its devices."""
        if not self._has_priority_0(parse_node_pod(msgspec.json.encode(pod))):
            return None
        return Finding(
            "PriorityNeedsRight",
            subject,
            "it has priority 0 on its devices: the policy hami-placement "
            "refuses it without a right",
            "bind the role hami-priority-user to the ServiceAccount of its "
            "pods: docs/installation.md",
        )

    def _has_priority_0(self, item: NodePod) -> bool:
        """Reports whether a resource of the pod, or a variable, says so."""
        names = {vendor.resources.priority for vendor in self.cluster.vendors}
        for container in item.pod.containers:
            for name, text in container.limits.items():
                if name in names and strict_integer(text) == 0:
                    return True
        if not requests_devices(self.cluster.vendors, item.pod.containers):
            return False
        return any(task_priority(variables) == 0 for variables in item.environments.values())


def as_created(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a pod of the API server as its author would create it again: without its node, which a scheduler may have
    chosen, and without the annotations and labels that HAMi's scheduler and device plugins write."""
    meta = dict(pod["metadata"])
    for part in ("annotations", "labels"):
        meta[part] = {
            key: text for key, text in (meta.get(part) or {}).items() if not is_scheduler_owned(key)
        }
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {**pod, "metadata": meta, "spec": spec}


def render_upgrade(workloads: int, findings: Sequence[Finding]) -> str:
    """Returns *findings* about so many *workloads* as text: each problem with the first of those that have it."""
    count = f"{len(findings):,}" if findings else "nothing"
    lines = [f"{counted(workloads, 'workload')}: {count} to change before the upgrade"]
    groups: dict[tuple[str, str, str], list[str]] = {}
    for finding in findings:
        problem = (finding.rule, finding.problem, finding.remedy)
        groups.setdefault(problem, []).append(finding.subject)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    for (rule, text, remedy), subjects in ordered[:SHOWN_PROBLEMS]:
        named = ", ".join(subjects[:SHOWN_SUBJECTS])
        if len(subjects) > SHOWN_SUBJECTS:
            named += f" and {len(subjects) - SHOWN_SUBJECTS:,} more"
        lines += ["", f"{rule}: {named}: {text}", f"  → {remedy}"]
    others = sum(len(subjects) for _, subjects in ordered[SHOWN_PROBLEMS:])
    if others:
        lines += ["", f"and {others:,} more"]
    return "\n".join(map(printable, lines))
