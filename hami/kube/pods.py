"""The calls to the API server about pods."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from hami.codec.documents import decode
from hami.codec.pods import (
    DISRUPTION_TARGET,
    PREEMPTED,
    parse_controller,
    parse_node_pod,
    parse_pod,
)
from hami.codec.times import render_time
from hami.errors import ClusterError, Conflict, NotFound
from hami.kube.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from hami.kube.calls import NO_EDITS, Calls, Edits, as_json, deletion_of, path_of
from hami.kube.pages import parse_page
from hami.model import OwnerRef, Pod, PodRef

_OBJECT = msgspec.json.Decoder(dict[str, Any])


class Pods(Calls):
    """Calls about pods."""

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Returns the current pod; ``None`` if there is none. Raises also: MalformedInput."""
        return self._get(path_of("pods", namespace, name), parse_pod)

    def environment(self, ref: PodRef, container: str) -> Mapping[str, str]:
        """Returns the environment variables that a container of this pod sets to a literal value.

        Raises: NotFound if the pod is gone, also if there is another one of its name; MalformedInput.
        """
        data = self._read("GET", path_of("pods", ref.namespace, ref.name))
        node_pod = parse_node_pod(data)
        if node_pod.pod.ref.uid != ref.uid:
            raise NotFound(f"pod {ref} is another one now", 404)
        return node_pod.environments.get(container, {})

    def specification(self, ref: PodRef) -> Mapping[str, Any]:
        """Returns exactly this pod as JSON, with all its fields. Raises: NotFound if it is gone, also if there is
        another one of its name; MalformedInput."""
        document: dict[str, Any] = decode(
            "pod", _OBJECT, self._read("GET", path_of("pods", ref.namespace, ref.name))
        )
        if (document.get("metadata") or {}).get("uid") != ref.uid:
            raise NotFound(f"pod {ref} is another one now", 404)
        return document

    def controller(self, ref: PodRef) -> OwnerRef | None:
        """Returns the object that controls exactly this pod; ``None`` if there is none. Raises: NotFound if the pod is
        gone, also if there is another one of its name; MalformedInput."""
        uid, owner = parse_controller(self._read("GET", path_of("pods", ref.namespace, ref.name)))
        if uid != ref.uid:
            raise NotFound(f"pod {ref} is another one now", 404)
        return owner

    def pods_on(self, node: str) -> list[Pod]:
        """Returns all pods that are bound to *node*. Raises also: MalformedInput."""
        return self._pods("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"})

    def pods_labeled(self, namespace: str, selector: str) -> list[Pod]:
        """Returns the pods of *namespace* whose labels match *selector*. Raises also: MalformedInput."""
        return self._pods(path_of("pods", namespace), {"labelSelector": selector})

    def annotate_pod(
        self,
        ref: PodRef,
        annotations: Edits,
        labels: Edits = NO_EDITS,
        *,
        resource_version: str = "",
        timeout: float | None = None,
    ) -> Pod:
        """Changes annotations and labels of exactly this pod and returns the new state. With *resource_version* it is a
        compare-and-swap, with *timeout* one attempt.

        Raises: NotFound; Conflict if another pod has that name now, or this one has changed since *resource_version*.
        """
        meta = {"uid": ref.uid, "annotations": annotations}
        if labels:
            meta["labels"] = labels
        if resource_version:
            meta["resourceVersion"] = resource_version
        with _same_pod(ref):
            return parse_pod(
                self._patch(path_of("pods", ref.namespace, ref.name), {"metadata": meta}, timeout)
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
        """Binds the pod, in one attempt. One write sets its node, *annotations* and, from Kubernetes 1.35, *labels*.

        Raises: NotFound; Conflict if the pod is already bound or another pod has that name now.
        """
        meta = {
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
            "annotations": annotations,
            "labels": labels,
        }
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": meta,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = path_of("pods", ref.namespace, ref.name)
        self._api.request("POST", f"{path}/binding", body=as_json(binding), timeout=timeout)

    def nominate(self, ref: PodRef, node: str) -> None:
        """Shows that room is made for the pod on *node*.

        Raises: NotFound; Conflict if another pod has that name now.
        """
        self._patch_status(ref, {"nominatedNodeName": node}, MERGE_PATCH)

    def mark_preempted(self, ref: PodRef, message: str, now: datetime) -> Pod:
        """Sets the condition by which others see that the pod is evicted for one of higher priority, as kube-scheduler
        does before it deletes a pod. Returns the new state.

        Raises: NotFound; Conflict if another pod has that name now.
        """
        return parse_pod(
            self._patch_status(
                ref,
                {
                    "conditions": [
                        {
                            "type": DISRUPTION_TARGET,
                            "status": "True",
                            "reason": PREEMPTED,
                            "message": message,
                            "lastTransitionTime": render_time(now),
                        }
                    ]
                },
                STRATEGIC_MERGE_PATCH,
            )
        )

    def clear_preempted(self, ref: PodRef, resource_version: str) -> None:
        """Removes that condition from the pod, which is not evicted.

        Raises: NotFound; Conflict if the pod has changed since *resource_version*, or another one has that name now.
        """
        self._patch_status(
            ref,
            {"conditions": [{"type": DISRUPTION_TARGET, "$patch": "delete"}]},
            STRATEGIC_MERGE_PATCH,
            resource_version,
        )

    def evict(self, ref: PodRef, grace_s: int) -> None:
        """Deletes exactly this pod, which has at most *grace_s* seconds to end, also if it is being deleted already.

        Raises: NotFound; Conflict if another pod has that name now.
        """
        self._write(
            "DELETE",
            path_of("pods", ref.namespace, ref.name),
            body=as_json(deletion_of(ref.uid) | {"gracePeriodSeconds": grace_s}),
        )

    def request_eviction(self, ref: PodRef, *, dry_run: bool = False) -> None:
        """Evicts exactly this pod, in one attempt, unless a PodDisruptionBudget does not permit it. *dry_run*: only
        asks whether that is permitted.

        Raises: NotFound; Conflict if another pod has that name now; ClusterError 429, which names the budget.
        """
        options = deletion_of(ref.uid)
        if dry_run:
            options["dryRun"] = ["All"]
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": ref.namespace, "name": ref.name},
            "deleteOptions": options,
        }
        path = path_of("pods", ref.namespace, ref.name)
        self._api.request("POST", f"{path}/eviction", body=as_json(eviction))

    def _pods(self, path: str, query: Mapping[str, str]) -> list[Pod]:
        return [
            parse_pod(item)
            for item in parse_page("pods", self._read("GET", path, query=query)).items
        ]

    def _patch_status(
        self, ref: PodRef, status: Mapping[str, Any], content_type: str, resource_version: str = ""
    ) -> bytes:
        meta = {"uid": ref.uid} | (
            {"resourceVersion": resource_version} if resource_version else {}
        )
        with _same_pod(ref):
            return self._write(
                "PATCH",
                f"{path_of('pods', ref.namespace, ref.name)}/status",
                body=as_json({"metadata": meta, "status": status}),
                content_type=content_type,
            )


def is_budget_refusal(error: ClusterError) -> bool:
    """Reports whether a PodDisruptionBudget does not permit an eviction now; 429 alone may be an API server that is
    busy."""
    return error.status == 429 and "disruption budget" in str(error)


@contextlib.contextmanager
def _same_pod(ref: PodRef) -> Iterator[None]:
    """Raises: Conflict if a patch of the pod was refused because another pod has its name now."""
    try:
        yield
    except ClusterError as error:
        if error.status == 422 and "metadata.uid" in str(error):
            raise Conflict(f"pod {ref} is another one now: {error}", error.status) from error
        raise
