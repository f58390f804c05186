"""Admission: what the mutating webhook changes in a new pod, and which pods it denies.

Modules about claims are imported for the first pod that has one: they take 50 ms, and few clusters need them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hami.codec.admission import Review
from hami.codec.documents import entries
from hami.codec.keys import DEFAULT_SCHEDULER, is_scheduler_owned
from hami.errors import MalformedInput
from hami.model import ContainerKind, Pod
from hami.scheduler.over_budget import OverBudget
from hami.scheduler.settings import Settings
from hami.scheduling.quota import counted_by_kubernetes, quota_allows
from hami.state.admission import Admissions
from hami.state.view import View
from hami.vendors.admission import admit_ephemeral, admit_pod, confine_pod
from hami.vendors.draft import PodDraft
from hami.vendors.request import MAX_CONTAINERS, requests_devices
from hami.vendors.spec import Vendor
from hami.vendors.vocabulary import Vocabulary
from hami.vendors.wishes import MOST, Wishes, foreign_scheduler

MAX_RESOURCES = 128  # names in limits and requests of a container
_FOREIGN = "pod already has different scheduler assigned"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The pod is allowed, as *pod* (the same object if it is unchanged). *warnings*: for its author."""

    pod: Mapping[str, Any]
    message: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Denied:
    """The pod is denied; *code* is the HTTP status that the user sees."""

    message: str
    code: int = 403


_OVER_QUOTA = Denied("exceeding resource quota")


class Admitter:
    """The admission of pods."""

    def __init__(
        self,
        admissions: Admissions | View,
        settings: Settings,
        over_budget: OverBudget = OverBudget(),
    ) -> None:
        self._admissions = admissions
        self._settings = settings
        self._over_budget = over_budget
        self._vocabulary = Vocabulary(admissions.vendors)
        self._wishes = Wishes(self._vocabulary)

    def admit(self, review: Review) -> Admitted | Denied:
        """Decides about the pod in *review*.

        Source: HAMi v2.10, pkg/scheduler/webhook.go, Handle; forged annotations are denied beyond that.
        """
        if not review.pod:
            return Denied("there is no content to decode", 400)
        if review.is_mirror:
            return Admitted(review.pod)  # it runs already
        try:
            draft = PodDraft(review.pod, review.namespace)
        except MalformedInput as error:
            return Denied(str(error), 400)
        try:
            if review.subresource == "ephemeralcontainers":
                return self._admit_ephemeral(draft, review.before or {})
            if draft.decoded.claim:
                return self._admit_claimed(draft)
            return self._admit_new(draft)
        except MalformedInput as error:
            return Denied(str(error), 422)

    def _admit_claimed(self, draft: PodDraft) -> Admitted | Denied:
        """Decides about a pod that has been given a claim already, or says so: as about the pod without it."""
        from hami.codec.claim_spec import Inexpressible
        from hami.dra.hami_claims import take_claim

        claimed = take_claim(draft.wire, draft.decoded, self._admissions.vendors)
        try:
            given = self.admit_with_claim(
                claimed.plain, draft.namespace, claimed.name, claimed.users
            )
        except Inexpressible as error:
            return Denied(f"claim {claimed.name}: {error}")
        if given is None:
            return Denied(f"claim {claimed.name}: the pod requests no GPUs")
        if isinstance(given, Denied):
            return given
        return Admitted(given)

    def admit_with_claim(
        self, plain: Mapping[str, Any], namespace: str, name: str, users: Mapping[str, str] | None
    ) -> Mapping[str, Any] | Denied | None:
        """Returns the new pod *plain* with the claim *name*, as :func:`hami.dra.hami_claims.give_claim`, if it is
        admitted. What containers share by their claim counts once. Raises: MalformedInput."""
        answer = self._admit_new(PodDraft(plain, namespace), counts=False)
        if isinstance(answer, Denied):
            return answer
        given = self.give_claim(answer, namespace, name, users)
        if given is not None and not self._fits_quota(PodDraft(given, namespace)):
            return _OVER_QUOTA
        return given

    def give_claim(
        self, answer: Admitted, namespace: str, name: str, users: Mapping[str, str] | None = None
    ) -> Mapping[str, Any] | None:
        """Returns the admitted pod of *answer* with the claim *name*, as :func:`hami.dra.hami_claims.give_claim`.

        Raises: MalformedInput.
        """
        from hami.codec.claim_spec import Inexpressible
        from hami.dra.hami_claims import give_claim

        if answer.message:
            raise Inexpressible(
                f"its scheduler is not HAMi's, which makes the claim: {answer.message}"
            )
        evaded = self._evaded_quota(namespace, PodDraft(answer.pod).decoded)
        if evaded:
            raise Inexpressible(evaded)
        return give_claim(
            answer.pod,
            self._admissions.vendors,
            self._settings.gpu_scheduler_policy,
            name,
            self._settings.claims_scheduler_name,
            users,
        )

    def _evaded_quota(self, namespace: str, pod: Pod) -> str:
        """Returns why *pod* would evade a ResourceQuota that Kubernetes counts; empty if it would not."""
        quotas = self._admissions.quotas_of(namespace or pod.ref.namespace)
        evaded = counted_by_kubernetes(quotas, pod.scope, self._admissions.vendors.resources)
        if evaded is None:
            return ""
        return (
            f"ResourceQuota {evaded[0]} limits requests.{evaded[1]}, and Kubernetes counts no requests of pods "
            "with claims: limit the devices of the class gpu.hami.io instead"
        )

    def _admit_ephemeral(self, draft: PodDraft, before: Mapping[str, Any]) -> Admitted | Denied:
        """Decides about an existing pod that gets an ephemeral container, which could see all devices of the node.

        Whether claims that users have written are for our devices is not known here: such a container sees none.
        *before*: the pod without it.
        """
        from hami.dra.pod_claims import has_claim

        vendors = (
            self._admissions.vendors if has_claim(draft.wire) else self._requested_vendors(draft)
        )
        if any(vendor.admission.refuses_ephemeral for vendor in vendors):
            return Denied(
                "ephemeralContainers are not permitted in strict mode on a pod that requests devices"
            )
        earlier = {
            str(container.get("name"))
            for container in entries((before.get("spec") or {}).get("ephemeralContainers"))
        }
        return Admitted(admit_ephemeral(self._admissions.vendors, draft, earlier))

    def _admit_new(self, draft: PodDraft, *, counts: bool = True) -> Admitted | Denied:
        """Decides about a new pod. *counts*: it counts for quotas as it is."""
        pod, vendors = draft.decoded, self._admissions.vendors
        problem = _forbidden(pod)
        if problem:
            return Denied(problem)
        is_foreign = self._is_of_another_scheduler(pod.scheduler_name)
        if is_foreign and not vendors.confining:
            return Admitted(draft.wire, _FOREIGN, self._foreign_warnings(pod))
        problem = _beyond_bounds(pod)
        if problem:
            return Denied(problem) if self._is_managed(draft) else Admitted(draft.wire)
        if is_foreign:
            confine_pod(vendors, draft)
            return Admitted(draft.render(), _FOREIGN, self._foreign_warnings(pod))
        admit_pod(self._vocabulary, draft)
        problem = self._take_over(draft)
        if problem:
            return Denied(problem)
        if counts and not self._fits_quota(draft):
            return _OVER_QUOTA
        return Admitted(draft.render(), warnings=self._warnings(draft))

    def _warnings(self, draft: PodDraft) -> tuple[str, ...]:
        """Returns the warnings about a pod; in a view, which does not know what nodes offer, only those of vendors."""
        admissions = self._admissions
        if isinstance(admissions, View):
            return tuple(draft.warnings[:MOST])
        found = self._wishes.warnings(
            draft.decoded, admissions.offers, admissions.device_sizes(), draft.containers
        )
        return tuple([*draft.warnings, *found][:MOST])

    def _foreign_warnings(self, pod: Pod) -> tuple[str, ...]:
        """Returns the warning about a pod that requests devices from another scheduler."""
        if not requests_devices(self._admissions.vendors, pod.containers):
            return ()
        own = self._settings.scheduler_name
        if not own:
            return ()
        return (foreign_scheduler(pod.scheduler_name, own),)

    def _take_over(self, draft: PodDraft) -> str:
        """Gives a pod with devices to HAMi's scheduler, within the budget of its namespace. Returns why it cannot be;
        empty if it can."""
        if not draft.requests_devices:
            return ""
        for container in draft.containers:
            if container.is_privileged:
                return f"container {container.name} is privileged"
        if self._settings.scheduler_name:
            if draft.decoded.node_name:
                return "pod has node assigned"
            draft.spec.set_scheduler(self._settings.scheduler_name)
        return self._over_budget.apply(draft)

    def _fits_quota(self, draft: PodDraft) -> bool:
        if not self._admissions.quotas_of(draft.namespace):
            return True
        pod = draft.changed()
        budgets = self._admissions.budgets(draft.namespace, pod.scope)
        return quota_allows(self._admissions.vendors, budgets, pod)

    def _is_managed(self, draft: PodDraft) -> bool:
        return bool(self._admissions.vendors.admitting_all) or any(self._requested_vendors(draft))

    def _requested_vendors(self, draft: PodDraft) -> Iterator[Vendor]:
        """Yields the vendors whose resources the containers name, for one container after the other."""
        for container in draft.decoded.containers:
            yield from self._admissions.vendors.requested_by(container.limits, container.requests)

    def _is_of_another_scheduler(self, name: str) -> bool:
        if not name or self._settings.is_own_scheduler(name):
            return False
        return name != DEFAULT_SCHEDULER or not self._settings.force_overwrite_default_scheduler


def _forbidden(pod: Pod) -> str:
    """Returns a message for the author of a pod that is never admitted; empty for others."""
    if ContainerKind.APP not in [container.kind for container in pod.containers]:
        return "pod has no containers"
    for key in (*pod.annotations, *pod.labels):
        if is_scheduler_owned(key):
            return f"{key} is written by the HAMi scheduler alone and may not be set on a new pod"
    return ""


def _beyond_bounds(pod: Pod) -> str:
    """Returns a message for the author of a pod with too many containers or resources; empty for others."""
    if len(pod.containers) > MAX_CONTAINERS:
        return f"pod has {len(pod.containers)} containers, expected at most {MAX_CONTAINERS}"
    for container in pod.containers:
        names = len(container.limits.keys() | container.requests.keys())
        if names > MAX_RESOURCES:
            return f"container {container.name} names {names} resources, expected at most {MAX_RESOURCES}"
    return ""
