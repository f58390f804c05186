"""Clusters for the commands for people: objects as the API server has them, and an API that serves them in pages."""

import json
from dataclasses import dataclass, field

from hami.errors import ClusterError, Conflict, Gone, NotFound
from testing.nodes import fake_node, gpu
from testing.pods import pod

CREATED = "2026-08-21T12:00:00Z"


def node(name, *cards, unschedulable=False, **fields):
    """Returns a node with the GPUs *cards*, by default one."""
    made = fake_node(name, cards or (gpu(),), **fields)
    made["metadata"]["resourceVersion"] = "1"
    return made | {"spec": {"unschedulable": True}} if unschedulable else made


def pending(name, namespace="default", **resources):
    """Returns a pod that waits; *resources* as in :func:`testing.pods.pod`."""
    made = pod(name, **resources)
    made["metadata"] |= {
        "namespace": namespace,
        "uid": f"uid-{namespace}-{name}",
        "creationTimestamp": CREATED,
        "resourceVersion": "1",
    }
    return made | {"status": {"phase": "Pending"}}


def bound(name, node, *shares, namespace="default", phase="Running", **resources):
    """Returns a pod that holds *shares* (index of the card, MiB, cores) of *node*, each a container's."""
    made = pending(name, namespace, **resources or {"gpu": len(shares)})
    text = (
        "".join(f"GPU-{node}-{index},NVIDIA,{memory},{cores}:" for index, memory, cores in shares)
        + ";"
    )
    made["metadata"]["annotations"] |= {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-time": "1755777600",
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-allocated": text,
    }
    made["spec"]["nodeName"] = node
    return made | {"status": {"phase": phase}}


def claimed(pod, node, memory="3000Mi"):
    """Returns a claim that a pod of this name holds."""
    result = {
        "driver": "gpu.hami.io",
        "request": "main",
        "pool": f"hami/{node}",
        "device": f"gpu-{node}-0",
        "consumedCapacity": {"memory": memory, "cores": "10", "share": "10"},
    }
    return {
        "metadata": {"namespace": "default", "name": f"{pod}-hami", "uid": f"claim-{pod}"},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-default-{pod}"}],
        },
    }


def quota(namespace, name="quota", **limits):
    """Returns a ResourceQuota: ``gpumem=4000``."""
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": f"uid-{namespace}-{name}"},
        "spec": {"hard": {f"limits.nvidia.com/{key}": str(value) for key, value in limits.items()}},
    }


@dataclass
class FakeApi:
    """An API server for reading. *others*: objects by resource, such as ``deployments``. *errors*: by path.

    *groups*: specifications of PodGroups of Kubernetes. *expired*: continue tokens that have expired, once. *answers*:
    annotations that the next pod is given before each read of it, one after the other. *patches*: what was written.
    """

    nodes: list = field(default_factory=list)
    pods: list = field(default_factory=list)
    quotas: list = field(default_factory=list)
    events: list = field(default_factory=list)
    others: dict = field(default_factory=dict)
    groups: dict = field(default_factory=dict)
    config: str | None = ""
    config_map: str = "hami-scheduler-device"
    errors: dict = field(default_factory=dict)
    expired: set = field(default_factory=set)
    requests: list = field(default_factory=list)
    answers: list = field(default_factory=list)
    patches: list = field(default_factory=list)

    def request(self, method, path, *, query=None, body=None, content_type=""):
        if method == "PATCH":
            return self._patch(path, json.loads(body), content_type)
        assert method == "GET", "only resize writes anything"
        self.requests.append((path, query or {}))
        if path in self.errors:
            raise self.errors[path]
        match path.split("/")[3:]:
            case ["nodes"]:
                return self._page(self.nodes, query)
            case ["pods"]:
                return self._page(self.pods, query)
            case ["resourcequotas"]:
                return self._page(self.quotas, query)
            case ["events"] | ["namespaces", _, "events"]:
                return self._page(self.events, query)
            case ["namespaces", "kube-system", "configmaps", self.config_map] if (
                self.config is not None
            ):
                return json.dumps({"data": {"device-config.yaml": self.config}}).encode()
            case ["v1beta1", "namespaces", _, "podgroups", name] if name in self.groups:
                return json.dumps({"spec": self.groups[name]}).encode()
            case ["namespaces", namespace, "pods", name]:
                for pod_object in self.pods:
                    if (pod_object["metadata"]["namespace"], pod_object["metadata"]["name"]) == (
                        namespace,
                        name,
                    ):
                        if self.patches and self.answers:
                            pod_object["metadata"]["annotations"] |= self.answers.pop(0)
                        return json.dumps(pod_object).encode()
            case ["namespaces", namespace, "pods"]:
                return self._page(_inside(self.pods, namespace), query)
            case [*_, "namespaces", namespace, resource]:
                return self._page(_inside(self.others.get(resource, []), namespace), query)
            case ["v1", resource] | [("namespaces" | "replicationcontrollers") as resource]:
                return self._page(self.others.get(resource, []), query)
        raise NotFound(f"{path}: 404: not found", 404)

    def _patch(self, path, body, content_type):
        assert content_type == "application/merge-patch+json"
        assert list(body) == ["metadata"]
        self.patches.append(body["metadata"])
        if path in self.errors:
            raise self.errors[path]
        (found,) = (
            one["metadata"]
            for one in self.pods
            if path
            == f"/api/v1/namespaces/{one['metadata']['namespace']}/pods/{one['metadata']['name']}"
        )
        if (body["metadata"]["uid"], body["metadata"]["resourceVersion"]) != (
            found["uid"],
            found["resourceVersion"],
        ):
            raise Conflict(f"{path}: 409: it has changed", 409)
        found["annotations"] |= body["metadata"]["annotations"]
        return b"{}"

    def _page(self, items, query):
        token = query.get("continue", "")
        if token in self.expired:
            self.expired.remove(token)
            raise Gone("the continue token has expired", 410)
        begin, end = int(token or 0), int(token or 0) + int(query["limit"])
        meta = (
            {"continue": str(end), "remainingItemCount": len(items) - end}
            if end < len(items)
            else {}
        )
        return json.dumps({"metadata": meta, "items": items[begin:end]}).encode()


def _inside(items, namespace):
    return [item for item in items if item["metadata"]["namespace"] == namespace]


def refused(verb="list"):
    """Returns the error of a missing right."""
    return ClusterError(f"{verb}: 403: forbidden", 403)
