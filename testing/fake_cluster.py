"""A cluster in memory with the methods of `hami.kube.cluster.Cluster` and `ClaimWriter`, and faults on demand.

It holds what a test puts in, checks uids and resource versions as the API server does, and records every call.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from urllib3.exceptions import ConnectTimeoutError

from hami.codec.config_maps import ConfigMapRecord
from hami.codec.hami_claims import StoredClaim, parse_stored_claim
from hami.codec.objects import PriorityClass
from hami.codec.pods import parse_preempted
from hami.codec.times import render_time
from hami.codec.trust import SecretRecord, WebhookConfiguration
from hami.errors import ClusterError, Conflict, NotFound
from hami.kube.leases import LeaseRecord
from hami.model import DisruptionBudget, Node, OwnerRef, Pod, PodGroup, PodGroupRef, PodRef


@dataclass(frozen=True)
class Call:
    """A recorded call: the method's name, and its arguments by name."""

    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name):
        try:
            return self.arguments[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Fault:
    error: Exception
    after: bool


class FakeCluster:
    """Pods, nodes, leases, events, secrets and webhook configurations of one cluster.

    ``on_call(call)`` runs before each call, outside the lock: a test may change the cluster there, advance its clock,
    block, or raise. ``copies_labels``: whether bind takes labels over (Kubernetes 1.35 and later).
    """

    def __init__(self, *, pods=(), nodes=(), copies_labels=True):
        self.pods: dict[tuple[str, str], Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.conditions: dict[tuple[str, str], dict[str, str]] = {}  # of nodes, by name and type
        self.leases: dict[tuple[str, str], LeaseRecord] = {}
        self.events: dict[tuple[str, str], dict[str, Any]] = {}
        self.secrets: dict[tuple[str, str], SecretRecord] = {}
        self.webhooks: dict[str, WebhookConfiguration] = {}
        self.config_maps: dict[tuple[str, str], ConfigMapRecord] = {}
        self.labels: dict[tuple[str, str], Mapping[str, str]] = {}  # of ConfigMaps
        self.priority_classes: dict[str, PriorityClass] = {}
        self.budgets: list[DisruptionBudget] = []
        self.pod_groups: dict[tuple[str, str], PodGroup] = {}
        self.written_templates: dict[
            tuple[str, str], dict[str, Any]
        ] = {}  # those of users, as JSON
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}  # as the API server has them
        self.now = lambda: datetime(2026, 8, 21, 12, tzinfo=UTC)  # the time of day
        self.calls: list[Call] = []
        self.owners: dict[str, OwnerRef] = {}  # of pods, by uid
        self.specifications: dict[str, dict[str, Any]] = {}  # by the pod's uid
        self.environments: dict[
            tuple[str, str], dict[str, str]
        ] = {}  # by the pod's uid and the container's name
        self.copies_labels = copies_labels
        self.on_call = lambda call: None
        self._version = 100
        self._faults: dict[str, list[Fault]] = defaultdict(list)
        self._lock = threading.RLock()
        for pod in pods:
            self.put_pod(pod)
        for node in nodes:
            self.put_node(node)

    # ---- what tests do to it

    def put_pod(self, pod: Pod) -> Pod:
        """Create or replace a pod; it gets a new resource version."""
        with self._lock:
            stored = self.pods[pod.ref.namespace, pod.ref.name] = replace(
                pod, resource_version=self._next_version()
            )
            return stored

    def put_node(self, node: Node) -> Node:
        """Create or replace a node; it gets a new resource version."""
        with self._lock:
            stored = self.nodes[node.name] = replace(node, resource_version=self._next_version())
            return stored

    def put_lease(self, lease: LeaseRecord) -> LeaseRecord:
        """Create or replace a lease; it gets a new resource version."""
        with self._lock:
            stored = replace(lease, resource_version=self._next_version())
            self.leases[lease.namespace, lease.name] = stored
            return stored

    def put_secret(self, secret: SecretRecord) -> SecretRecord:
        """Create or replace a Secret; it gets a new resource version."""
        with self._lock:
            stored = replace(secret, resource_version=self._next_version())
            self.secrets[secret.namespace, secret.name] = stored
            return stored

    def put_config_map(self, record: ConfigMapRecord) -> ConfigMapRecord:
        """Create or replace a ConfigMap; it gets a new resource version."""
        with self._lock:
            stored = replace(record, resource_version=self._next_version())
            self.config_maps[record.namespace, record.name] = stored
            return stored

    def put_webhook(self, configuration: WebhookConfiguration) -> WebhookConfiguration:
        """Create or replace a webhook configuration; it gets a new resource version."""
        with self._lock:
            stored = self.webhooks[configuration.name] = replace(
                configuration, resource_version=self._next_version()
            )
            return stored

    def delete_pod(self, namespace: str, name: str) -> None:
        del self.pods[namespace, name]

    def fail(self, method: str, error: Exception, *, after: bool = False, times: int = 1) -> None:
        """Makes the next *times* calls of *method* raise *error*, before they take effect or *after*."""
        self._faults[method] += [Fault(error, after)] * times

    def heal(self) -> None:
        """Removes all pending faults."""
        self._faults.clear()

    def calls_of(self, *methods: str) -> list[Call]:
        """Returns the calls of these methods, in order."""
        return [call for call in self.calls if call.method in methods]

    # ---- the methods of Cluster

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self._do(
            "pod", lambda: self.pods.get((namespace, name)), namespace=namespace, name=name
        )

    def node(self, name: str) -> Node | None:
        return self._do("node", lambda: self.nodes.get(name), name=name)

    def environment(self, ref: PodRef, container: str) -> Mapping[str, str]:
        def effect():
            pod = self.pods.get((ref.namespace, ref.name))
            if pod is None or pod.ref.uid != ref.uid:
                raise NotFound(f"pod {ref} is gone", 404)
            return self.environments.get((ref.uid, container), {})

        return self._do("environment", effect, ref=ref, container=container)

    def specification(self, ref: PodRef) -> Mapping[str, Any]:
        def effect():
            pod = self.pods.get((ref.namespace, ref.name))
            if pod is None or pod.ref.uid != ref.uid:
                raise NotFound(f"pod {ref} is gone", 404)
            return self.specifications.get(ref.uid, {"metadata": {"uid": ref.uid}})

        return self._do("specification", effect, ref=ref)

    def controller(self, ref: PodRef) -> OwnerRef | None:
        def effect():
            return self.owners.get(self._same(ref).controller)

        return self._do("controller", effect, ref=ref)

    def pods_on(self, node: str) -> list[Pod]:
        return self._do(
            "pods_on",
            lambda: [pod for pod in self.pods.values() if pod.node_name == node],
            node=node,
        )

    def pods_labeled(self, namespace: str, selector: str) -> list[Pod]:
        """*selector*: ``key=value`` or ``key``, several joined by commas."""
        return self._do(
            "pods_labeled",
            lambda: [
                pod
                for (space, _), pod in self.pods.items()
                if space == namespace and _matches(pod.labels, selector)
            ],
            namespace=namespace,
            selector=selector,
        )

    def annotate_pod(
        self,
        ref: PodRef,
        annotations: Mapping[str, str | None],
        labels: Mapping[str, str | None] = {},
        *,
        resource_version: str = "",
        timeout: float | None = None,
    ) -> Pod:
        def effect():
            pod = self._same(ref)
            _check_version(f"pod {ref}", pod.resource_version, resource_version)
            return self.put_pod(
                replace(
                    pod,
                    annotations=_merged(pod.annotations, annotations),
                    labels=_merged(pod.labels, labels),
                )
            )

        return self._do(
            "annotate_pod",
            effect,
            ref=ref,
            annotations=dict(annotations),
            labels=dict(labels),
            resource_version=resource_version,
            timeout=timeout,
        )

    def annotate_node(
        self, name: str, annotations: Mapping[str, str | None], resource_version: str = ""
    ) -> Node:
        def effect():
            node = _present(self.nodes.get(name), f"node {name}")
            _check_version(f"node {name}", node.resource_version, resource_version)
            return self.put_node(replace(node, annotations=_merged(node.annotations, annotations)))

        return self._do(
            "annotate_node",
            effect,
            name=name,
            annotations=dict(annotations),
            resource_version=resource_version,
        )

    def label_node(self, name: str, labels: Mapping[str, str | None]) -> None:
        def effect():
            node = _present(self.nodes.get(name), f"node {name}")
            self.put_node(replace(node, labels=_merged(node.labels, labels)))

        self._do("label_node", effect, name=name, labels=dict(labels))

    def publish_capacity(
        self, name: str, capacity: Mapping[str, str | None], annotations: Mapping[str, str | None]
    ) -> None:
        def effect():
            node = _present(self.nodes.get(name), f"node {name}")
            self.put_node(
                replace(
                    node,
                    annotations=_merged(node.annotations, annotations),
                    capacity=_merged(node.capacity, capacity),
                    allocatable=_merged(node.allocatable, capacity),
                )
            )

        self._do(
            "publish_capacity",
            effect,
            name=name,
            capacity=dict(capacity),
            annotations=dict(annotations),
        )

    def publish_health(
        self, name: str, annotations: Mapping[str, str | None], condition: Mapping[str, str]
    ) -> None:
        def effect():
            node = _present(self.nodes.get(name), f"node {name}")
            self.put_node(replace(node, annotations=_merged(node.annotations, annotations)))
            known = self.conditions.get((name, condition["type"]), {})
            self.conditions[name, condition["type"]] = {**known, **condition}

        self._do(
            "publish_health",
            effect,
            name=name,
            annotations=dict(annotations),
            condition=dict(condition),
        )

    def bind(
        self,
        ref: PodRef,
        node: str,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
        *,
        timeout: float | None = None,
    ) -> None:
        def effect():
            pod = self._same(ref)
            if pod.node_name:
                raise Conflict(f"pod {ref} is already assigned to node {pod.node_name}", 409)
            self.put_pod(
                replace(
                    pod,
                    node_name=node,
                    annotations=_merged(pod.annotations, annotations),
                    labels=_merged(pod.labels, labels if self.copies_labels else {}),
                )
            )

        self._do(
            "bind",
            effect,
            ref=ref,
            node=node,
            annotations=dict(annotations),
            labels=dict(labels),
            timeout=timeout,
        )

    def nominate(self, ref: PodRef, node: str) -> None:
        def effect():
            pod = self._same(ref)
            if pod.node_name:
                raise ClusterError(f"pod {ref} is bound", 422)
            self.put_pod(replace(pod, nominated_node=node))

        self._do("nominate", effect, ref=ref, node=node)

    def mark_preempted(self, ref: PodRef, message: str, now: datetime) -> Pod:
        preemptor, together = parse_preempted(message)
        assert preemptor, message
        return self._do(
            "mark_preempted",
            lambda: self.put_pod(
                replace(self._same(ref), preempted=True, preemptor=preemptor, evicted_with=together)
            ),
            ref=ref,
            message=message,
            now=now,
        )

    def clear_preempted(self, ref: PodRef, resource_version: str) -> None:
        def effect():
            pod = self._same(ref)
            _check_version(f"pod {ref}", pod.resource_version, resource_version)
            self.put_pod(replace(pod, preempted=False, preemptor="", evicted_with=None))

        self._do("clear_preempted", effect, ref=ref, resource_version=resource_version)

    def evict(self, ref: PodRef, grace_s: int) -> None:
        """A pod with a grace period ends when a test deletes it."""

        def effect():
            pod = self._same(ref)
            if not grace_s:
                self.delete_pod(ref.namespace, ref.name)
            elif not pod.deletion or grace_s < pod.deletion_grace_s:
                deletion = render_time(self.now() + timedelta(seconds=grace_s))
                self.put_pod(
                    replace(pod, deleting=True, deletion=deletion, deletion_grace_s=grace_s)
                )

        self._do("evict", effect, ref=ref, grace_s=grace_s)

    def request_eviction(self, ref: PodRef, *, dry_run: bool = False) -> None:
        def effect():
            self._same(ref)
            if not dry_run:
                self.delete_pod(ref.namespace, ref.name)

        self._do("request_eviction", effect, ref=ref, dry_run=dry_run)

    def bound_pods(self):
        bound = [pod for pod in self.pods.values() if pod.node_name]
        return self._do("bound_pods", lambda: bound)

    def disruption_budgets(self) -> list[DisruptionBudget]:
        return self._do("disruption_budgets", lambda: list(self.budgets))

    def pod_group(self, ref: PodGroupRef) -> PodGroup | None:
        return self._do(
            "pod_group", lambda: self.pod_groups.get((ref.namespace, ref.name)), ref=ref
        )

    # ---- the methods of ClaimWriter, with the rules of the API server about status

    def create_claim(self, claim: Mapping[str, Any], *, timeout: float) -> StoredClaim:
        def effect():
            meta = claim["metadata"]
            key = meta["namespace"], meta["name"]
            if key in self.claims:
                raise Conflict(f"claim {key} exists", 409)
            version = self._next_version()
            self.claims[key] = {
                **claim,
                "status": {},
                "metadata": {**meta, "uid": f"claim-{version}", "resourceVersion": version},
            }
            return self._stored_claim(*key)

        return self._do("create_claim", effect, claim=claim, timeout=timeout)

    def stored_claim(self, namespace: str, name: str, *, timeout: float) -> StoredClaim | None:
        return self._do(
            "stored_claim",
            lambda: self._stored_claim(namespace, name),
            namespace=namespace,
            name=name,
            timeout=timeout,
        )

    def template(self, namespace: str, name: str, *, timeout: float) -> dict[str, Any] | None:
        return self._do(
            "template",
            lambda: self.written_templates.get((namespace, name)),
            namespace=namespace,
            name=name,
            timeout=timeout,
        )

    def write_claim_status(self, claim: Mapping[str, Any], *, timeout: float) -> StoredClaim:
        def effect():
            meta, status = claim["metadata"], claim["status"]
            key = meta["namespace"], meta["name"]
            stored = _present(self.claims.get(key), f"claim {key}")
            if (meta["uid"], meta["resourceVersion"]) != tuple(
                stored["metadata"][field] for field in ("uid", "resourceVersion")
            ):
                raise Conflict(f"claim {key} has been modified", 409)
            allocation, earlier = status.get("allocation"), stored["status"].get("allocation")
            names = {request["name"] for request in stored["spec"]["devices"]["requests"]}
            if allocation is None and status.get("reservedFor"):
                raise ClusterError("reservedFor without an allocation", 422)
            if allocation is not None and earlier is not None and allocation != earlier:
                raise ClusterError("allocation is immutable", 422)
            if allocation is not None and not names >= {
                one["request"].partition("/")[0] for one in allocation["devices"]["results"]
            }:
                raise ClusterError("no such request", 422)
            self.claims[key] = {
                **stored,
                "status": status,
                "metadata": {**stored["metadata"], "resourceVersion": self._next_version()},
            }
            return self._stored_claim(*key)

        return self._do("write_claim_status", effect, claim=claim, timeout=timeout)

    def collect_claims(self) -> None:
        """Removes claims whose pods are gone, as kube-controller-manager does."""
        pods = {pod.ref.uid for pod in self.pods.values()}
        self.claims = {
            key: claim
            for key, claim in self.claims.items()
            if any(owner["uid"] in pods for owner in claim["metadata"]["ownerReferences"])
        }

    def _stored_claim(self, namespace: str, name: str) -> StoredClaim | None:
        claim = self.claims.get((namespace, name))
        return None if claim is None else parse_stored_claim(msgspec.json.encode(claim))

    def create_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        def effect():
            key = namespace, event["metadata"]["name"]
            if key in self.events:
                raise Conflict(f"event {key} exists", 409)
            self.events[key] = dict(event)

        self._do("create_event", effect, namespace=namespace, event=event)

    def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        def effect():
            _present(self.events.get((namespace, name)), f"event {name}").update(patch)

        self._do("patch_event", effect, namespace=namespace, name=name, patch=patch)

    def lease(
        self, namespace: str, name: str, *, timeout: float | None = None
    ) -> LeaseRecord | None:
        return self._do(
            "lease",
            lambda: self.leases.get((namespace, name)),
            namespace=namespace,
            name=name,
            timeout=timeout,
        )

    def write_lease(self, lease: LeaseRecord, *, timeout: float | None = None) -> LeaseRecord:
        def effect():
            stored = self.leases.get((lease.namespace, lease.name))
            _check_write(f"lease {lease.name}", stored, lease)
            annotations = {
                **(stored.annotations if stored is not None else {}),
                **lease.annotations,
            }
            return self.put_lease(
                replace(
                    lease,
                    annotations={
                        key: value for key, value in annotations.items() if value is not None
                    },
                )
            )

        return self._do("write_lease", effect, lease=lease, timeout=timeout)

    def secret(self, namespace: str, name: str) -> SecretRecord | None:
        return self._do(
            "secret", lambda: self.secrets.get((namespace, name)), namespace=namespace, name=name
        )

    def write_secret(self, secret: SecretRecord) -> SecretRecord:
        def effect():
            _check_write(
                f"secret {secret.name}", self.secrets.get((secret.namespace, secret.name)), secret
            )
            return self.put_secret(secret)

        return self._do("write_secret", effect, secret=secret)

    def config_map(self, namespace: str, name: str) -> ConfigMapRecord | None:
        return self._do(
            "config_map",
            lambda: self.config_maps.get((namespace, name)),
            namespace=namespace,
            name=name,
        )

    def priority_class(self, name: str) -> PriorityClass | None:
        return self._do("priority_class", lambda: self.priority_classes.get(name), name=name)

    def write_config_map(
        self, record: ConfigMapRecord, labels: Mapping[str, str]
    ) -> ConfigMapRecord:
        def effect():
            key = record.namespace, record.name
            _check_write(f"ConfigMap {record.name}", self.config_maps.get(key), record)
            self.labels[key] = labels
            return self.put_config_map(record)

        return self._do("write_config_map", effect, record=record)

    def config_map_names(self, namespace: str, selector: str, limit: int) -> list[str]:
        def effect():
            label, _, value = selector.partition("=")
            names = []
            for (of, name), labels in sorted(self.labels.items()):
                if (of, name) in self.config_maps and labels.get(label) == value:
                    names.append(name)
            return names[:limit]

        return self._do("config_map_names", effect, namespace=namespace, selector=selector)

    def delete_config_map(self, namespace: str, name: str) -> None:
        def effect():
            _present(self.config_maps.pop((namespace, name), None), f"ConfigMap {name}")

        return self._do("delete_config_map", effect, namespace=namespace, name=name)

    def webhook_configuration(self, name: str) -> WebhookConfiguration | None:
        return self._do("webhook_configuration", lambda: self.webhooks.get(name), name=name)

    def publish_bundle(
        self, configuration: WebhookConfiguration, bundle: bytes
    ) -> WebhookConfiguration:
        def effect():
            stored = _present(
                self.webhooks.get(configuration.name), f"webhook configuration {configuration.name}"
            )
            _check_version(
                configuration.name, stored.resource_version, configuration.resource_version
            )
            return self.put_webhook(
                replace(
                    stored,
                    webhooks=tuple(replace(webhook, bundle=bundle) for webhook in stored.webhooks),
                )
            )

        return self._do("publish_bundle", effect, configuration=configuration, bundle=bundle)

    # ---- internals

    def _do(self, method, effect, **arguments):
        call = Call(method, arguments)
        with self._lock:
            self.calls.append(call)
        self.on_call(call)
        with self._lock:
            fault = self._faults[method].pop(0) if self._faults[method] else None
            if fault and not fault.after:
                raise fault.error
            result = effect()
            if fault:
                raise fault.error
            return result

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)

    def _same(self, ref: PodRef) -> Pod:
        pod = _present(self.pods.get((ref.namespace, ref.name)), f"pod {ref}")
        if pod.ref.uid != ref.uid:
            raise Conflict(f"pod {ref} is another one now", 409)
        return pod


def no_answer(message: str = "read timed out") -> ClusterError:
    """Returns the error of a call without an answer."""
    return ClusterError(message)


def never_sent() -> ClusterError:
    """Returns the error of a call that found no connection."""
    error = ClusterError("connect timeout")
    error.__cause__ = ConnectTimeoutError()
    return error


def _present(thing, what):
    if thing is None:
        raise NotFound(f"{what} not found", 404)
    return thing


def _check_write(what, stored, record):
    """A record without a version is created, another replaces the version that was read."""
    if record.resource_version:
        _check_version(what, _present(stored, what).resource_version, record.resource_version)
    elif stored is not None:
        raise Conflict(f"{what} exists", 409)


def _check_version(what, stored, given):
    if given and given != stored:
        raise Conflict(f"{what} has been modified", 409)


def _matches(labels, selector):
    terms = [term.partition("=") for term in selector.split(",") if term]
    return all(
        key in labels and (not equals or labels[key] == value.removeprefix("="))
        for key, equals, value in terms
    )


def _merged(old, edits):
    return {key: value for key, value in {**old, **edits}.items() if value is not None}
