"""Admission of pods that get their cards by claims which the scheduler makes and allocates: those with the label
``hami.io/allocation-mode``, or in a namespace that has it. The API server evaluates the labels of namespaces, and calls
a path for each of the two values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hami.codec.admission import Review
from hami.codec.claim_spec import Inexpressible
from hami.codec.keys import ALLOCATION_MODE, CLAIM_ALLOCATION_MODES, PREFERRED
from hami.dra.hami_claims import make_claim_name
from hami.dra.pod_claims import has_claim
from hami.dra.user_claims import plain_pod
from hami.errors import ClusterError, MalformedInput
from hami.scheduler.admit import Admitted, Admitter, Denied
from hami.vendors.spec import Catalog

# a value of the label that leaves a pod as it is, whatever its namespace says
DEVICE_PLUGIN = "device-plugin"
_SHOWN = 100  # characters of a value in a message


Template = Callable[[str, str], "Mapping[str, Any] | None"]
"""Returns a ResourceClaimTemplate by its namespace and name; ``None`` if there is none. Raises: ClusterError."""


class ClaimAdmitter:
    """The admission of pods that get a claim: for what their containers request, or in place of the templates that they
    name. *admitter* is that of the others."""

    def __init__(
        self,
        admitter: Admitter,
        vendors: Catalog,
        card_sizes: Callable[[], Collection[int]],
        template: Template,
        make_name: Callable[[], str] = make_claim_name,
    ) -> None:
        """*card_sizes* returns those of the cards that claims can get, *make_name* the name of the next claim."""
        self._admitter = admitter
        self._vendors = vendors
        self._card_sizes = card_sizes
        self._template = template
        self._make_name = make_name

    def admit(self, review: Review, allocation_mode: str) -> Admitted | Denied:
        """Decides about the pod in *review*.
        *allocation_mode*: the label of its namespace; that of the pod takes precedence.

        A pod that requests no devices is admitted as any other. So is one that asks for what no claim can say, with a
        warning, unless *allocation_mode* requires a claim: then it is denied.
        """
        problem = ""
        try:
            claiming = self._with_claim(review)
            if claiming is None:
                return self._admitter.admit(review)
        except MalformedInput as error:
            claiming, problem = {}, str(error)
        except ClusterError as error:
            return Denied(f"the claims of the pod are not known: {error}", 503)
        labels = ((review.pod or {}).get("metadata") or {}).get("labels") or {}
        value = labels.get(ALLOCATION_MODE, allocation_mode)
        if value == DEVICE_PLUGIN:
            return self._admitter.admit(review)
        if value not in CLAIM_ALLOCATION_MODES:
            return Denied(
                f"label {ALLOCATION_MODE}={value[:_SHOWN]}: expected "
                f"{', '.join((*CLAIM_ALLOCATION_MODES, DEVICE_PLUGIN))}"
            )
        if problem:
            return self._without_claim(review, value, problem)
        # with the label, whoever has set it: so the other webhook knows that the pod has been here
        meta = {**claiming["metadata"], "labels": {**labels, ALLOCATION_MODE: value}}
        return Admitted({**claiming, "metadata": meta})

    def _with_claim(self, review: Review) -> Mapping[str, Any] | None:
        """Returns the pod of *review* with a claim of its own; ``None`` if it is judged like any other.

        Raises: MalformedInput if it gets none; ClusterError.
        """
        answer = self._admitter.admit(review)
        if isinstance(answer, Denied) or has_claim(answer.pod):
            return None
        plain = plain_pod(
            review.pod or {},
            partial(self._template, review.namespace),
            self._vendors,
            self._card_sizes,
        )
        name = self._make_name()
        if plain is None:
            return self._admitter.give_claim(answer, review.namespace, name)
        claiming = self._admitter.admit_with_claim(plain.wire, review.namespace, name, plain.users)
        if isinstance(claiming, Denied):
            raise Inexpressible(claiming.message)
        return claiming

    def _without_claim(self, review: Review, value: str, problem: str) -> Admitted | Denied:
        """Decides about a pod that gets no claim because of *problem*. *value*: of its label."""
        if value != PREFERRED:
            return Denied(
                f"{ALLOCATION_MODE}={value} requires a claim for the pod's devices, and none can be made: {problem}"
            )
        answer = self._admitter.admit(review)
        if isinstance(answer, Denied):
            return answer
        warning = f"{ALLOCATION_MODE}={value}: no claim is made for the pod's devices: {problem}"
        return replace(answer, warnings=(warning, *answer.warnings))
