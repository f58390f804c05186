"""Admission of pods that are to get their cards by claims: those with the label
``hami.io/allocation-mode``, or in a namespace
that has it. The API server evaluates the labels of namespaces, and calls a path for each of the two values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hami.codec.admission import Review
from hami.codec.claims import Inexpressible
from hami.codec.keys import ALLOCATION_MODE, CLAIM_ALLOCATION_MODES, PREFERRED, is_scheduler_owned
from hami.dra.own_claim import make_claim_name
from hami.dra.translate import Translation, has_claim, translate
from hami.dra.written_claims import plain_pod
from hami.errors import ClusterError, MalformedInput
from hami.model import Pod
from hami.scheduler.admit import Admitted, Admitter, Denied, beyond_bounds
from hami.scheduler.settings import Settings
from hami.state.store import Store
from hami.vendors.draft import PodDraft

DEVICE_PLUGIN = (
    "device-plugin"  # a value of the label that leaves a pod as it is, whatever its namespace says
)
_SHOWN = 100  # characters of a value in a message


Translate = Callable[[Review], "Mapping[str, Any] | Inexpressible | None"]
"""Returns the pod of a review with a claim, or why it gets none; ``None`` if it is judged like any other. Raises:
MalformedInput; ClusterError."""
Template = Callable[[str, str], "Mapping[str, Any] | None"]
"""Returns a ResourceClaimTemplate by its namespace and name; ``None`` if there is none. Raises: ClusterError."""


class ClaimAdmitter:
    """The admission of pods that are to get a claim from *translate*; *admitter* is that of the others."""

    def __init__(self, admitter: Admitter, translate: Translate) -> None:
        self._admitter = admitter
        self._translate = translate

    def admit(self, review: Review, allocation_mode: str) -> Admitted | Denied:
        """Decides about the pod in *review*.
        *allocation_mode*: the label of its namespace; that of the pod takes precedence.

        A pod that requests no devices is admitted as any other. So is one that asks for what no claim can say, with a
        warning, unless *allocation_mode* requires a claim: then it is denied.
        """
        try:
            translated = self._translate(review)
        except MalformedInput as error:
            translated = Inexpressible(str(error))
        except ClusterError as error:
            return Denied(f"the claims of the pod are not known: {error}", 503)
        labels = ((review.pod or {}).get("metadata") or {}).get("labels") or {}
        value = labels.get(ALLOCATION_MODE, allocation_mode)
        if translated is None or value == DEVICE_PLUGIN:
            return self._admitter.admit(review)
        if value not in CLAIM_ALLOCATION_MODES:
            return Denied(
                f"label {ALLOCATION_MODE}={value[:_SHOWN]}: expected "
                f"{', '.join((*CLAIM_ALLOCATION_MODES, DEVICE_PLUGIN))}"
            )
        if isinstance(translated, Mapping):
            # with the label, whoever has set it: so the other webhook knows that the pod has been here
            meta = translated["metadata"]
            return Admitted(
                {**translated, "metadata": {**meta, "labels": {**labels, ALLOCATION_MODE: value}}}
            )
        if value == PREFERRED:
            answer = self._admitter.admit(review)
            return (
                answer
                if isinstance(answer, Denied)
                else replace(
                    answer,
                    warning=f"{ALLOCATION_MODE}={value}: no claim is made for the pod's devices: {translated.reason}",
                )
            )
        return Denied(
            f"{ALLOCATION_MODE}={value} requires a claim for the pod's devices, and none "
            f"can be made: {translated.reason}"
        )


class OwnClaims:
    """Gives pods claims of their own, which the scheduler allocates: for what their containers request, or the
    templates that they name."""

    def __init__(
        self,
        admitter: Admitter,
        cache: Store,
        template: Template,
        make_name: Callable[[], str] = make_claim_name,
    ) -> None:
        """*admitter* judges the pods before. *make_name* returns the name of the next claim."""
        self._admitter = admitter
        self._cache = cache
        self._template = template
        self._make_name = make_name

    def __call__(self, review: Review) -> Mapping[str, Any] | Inexpressible | None:
        """Returns the pod as `Translate` says. Raises: MalformedInput; ClusterError."""
        answer = self._admitter.admit(review)
        if isinstance(answer, Denied) or has_claim(answer.pod):
            return None
        plain = plain_pod(
            review.pod or {},
            partial(self._template, review.namespace),
            self._cache.vendors,
            self._cache.claimable_sizes,
        )
        if plain is None:
            return self._admitter.give_claim(answer, review.namespace, self._make_name())
        given = self._admitter.admit_with_claim(
            plain.wire, review.namespace, self._make_name(), plain.users
        )
        return Inexpressible(given.message) if isinstance(given, Denied) else given


class ClaimsOfTemplates:
    """Gives pods claims that are made of templates, and that kube-scheduler allocates. *card_sizes* returns those of
    the cards that claims can get."""

    def __init__(
        self, cache: Store, settings: Settings, card_sizes: Callable[[], Collection[int]]
    ) -> None:
        self._cache = cache
        self._policy = settings.gpu_scheduler_policy
        self._card_sizes = card_sizes

    def __call__(self, review: Review) -> Mapping[str, Any] | Inexpressible | None:
        """Returns the pod as `Translate` says. Raises: MalformedInput."""
        if not review.pod:
            return None
        pod = PodDraft(review.pod, review.namespace).decoded
        if (
            any(map(is_scheduler_owned, (*pod.annotations, *pod.labels)))
            or beyond_bounds(pod) is not None
        ):
            return None  # judged like any other
        translated = translate(
            review.pod, self._cache.vendors, self._policy, self._card_sizes(), review.namespace
        )
        if not isinstance(translated, Translation):
            return translated
        quota = self._quota(review.namespace or pod.ref.namespace, pod)
        return Inexpressible(quota) if quota else translated.pod

    def _quota(self, namespace: str, pod: Pod) -> str:
        """Returns why claims would evade a ResourceQuota of *namespace*; empty if there is none."""
        names = {name for vendor in self._cache.vendors for name in vendor.resources.names}
        for quota in self._cache.quotas_of(namespace):
            if quota.matches(pod.scope) and (
                limited := sorted(names & (quota.limits.keys() | quota.requests))
            ):
                return (
                    f"ResourceQuota {quota.name} limits {limited[0]}, and no quota counts the memory and cores of "
                    "claims"
                )
        return ""
