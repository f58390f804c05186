"""Huawei Ascend chips: whole, partitioned by templates (hard split) or shared by HAMi's limiter (soft split).

A pod requests the soft split with an annotation; only some nodes support it. In hard split, memory is rounded up to the
size of a template, which also determines the cores.
Source: HAMi v2.10, pkg/device/ascend/device.go.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hami.codec.device_config import AscendChip, Template
from hami.codec.forms import Words
from hami.errors import PodRefused
from hami.model import (
    Allocation,
    Device,
    DeviceUsage,
    Node,
    NodePolicy,
    Reason,
    Request,
    Share,
    Unfit,
)
from hami.vendors import inventory
from hami.vendors.admission import check_amounts
from hami.vendors.draft import ContainerDraft, PodDraft
from hami.vendors.select import concentration, grouped, whole_pairs
from hami.vendors.shares import common_share
from hami.vendors.spec import AnnotationContext, Candidate, FitContext, Vendor
from hami.vendors.terms import Term

MODE = "huawei.com/vnpu-mode"
SOFT = "hami-core"
HARD = "template"
MODES = (SOFT, HARD)  # a pod without one gets what its node offers
MODE_TERM = Term(MODE, Words(MODES), "how chips are divided")
ONE_OF_MODULE = "hami.io/ascend-one-of-module"
"""The pod's containers that asked for a slice of one chip and get one of each chip of a module. Admission writes it, so
that it gives the same answer to a pod that it has already changed."""
# node annotation and key of Device.info: the node supports the soft split
NODE_MODE = "hami-vnpu-core"
VISIBLE = "ASCEND_VISIBLE_DEVICES"
NETWORK = "NetworkID"
NETWORK_WEIGHT = 10


def is_networked(chip: AscendChip) -> bool:
    """Reports whether chips of this kind are linked in networks, if their device plugin reports it."""
    return chip.common_word.startswith("Ascend910")


def registered(vendor: Vendor, node: Node, *, soft: bool) -> tuple[Device, ...] | None:
    """Returns the registered devices. *soft*: the default for the node's support of the soft split."""
    mode = node.annotations.get(NODE_MODE)
    if mode is not None:
        soft = mode == "true"
    devices = []
    for device in inventory.registered(vendor, node) or ():
        devices.append(replace(device, info={**device.info, NODE_MODE: soft}))
    return tuple(devices) or None


def check_node(request: Request, context: FitContext) -> Reason | None:
    """Rejects a node without the soft split if the pod requests it, and one with it for the hard split."""
    mode = context.annotation(MODE)
    if mode not in MODES:
        return None
    for usage in context.usages:
        if bool(usage.device.info.get(NODE_MODE)) != (mode == SOFT):
            return Reason.MODE
    return None


@dataclass(frozen=True, slots=True)
class ChipFunctions:
    """The functions that depend on the kind of chip.

    *family*: the count resources of all Ascend chips. *hides*: these functions keep chips from containers that request
    none of them, as one chip's functions do for all. *by_default*: if a pod does not say whether to.
    """

    chip: AscendChip
    family: Collection[str]
    hides: bool
    by_default: bool

    def admit(self, draft: ContainerDraft) -> bool:
        """Admits a container. Raises: PodRefused."""
        if draft.resources.count in draft.given:
            check_amounts(draft)
            _cores_only_in_software(draft)
            self._request_whole_modules(draft)
            self._round_memory(draft)
            draft.pod.spec.set_runtime_class(self.chip.runtime_class)
            return True
        if self.hides and not {*draft.limits, *draft.requests}.intersection(self.family):
            self._hide_devices(draft)
        return False

    def admit_ephemeral(self, draft: ContainerDraft, is_requested: bool) -> None:
        """Keeps chips from an ephemeral container, as from others that request none."""
        self._hide_devices(draft)

    def _hide_devices(self, draft: ContainerDraft) -> None:
        if draft.pod.hides_devices(draft.name, self.by_default):
            draft.set_env(VISIBLE, "")

    def no_room(self, candidate: Candidate) -> Reason | None:
        """Rejects a chip without enough free memory for the template."""
        needed = self._sized(candidate.request, candidate.context).memory_on(candidate.device)
        return Reason.NO_MEMORY if candidate.usage.memory_free_mib < needed else None

    def make_share(self, candidate: Candidate) -> Share:
        """Returns a share with the memory of the template in hard split."""
        return common_share(
            candidate._replace(request=self._sized(candidate.request, candidate.context))
        )

    def select_devices(
        self, eligible: Sequence[DeviceUsage], request: Request, context: FitContext
    ) -> Sequence[DeviceUsage] | Unfit:
        """Selects whole modules of two for chips that come in pairs.

        Otherwise it selects chips of few networks, if each chip of the node is in one, or the first chips.
        """
        if self.chip.super_pod and request.count > 1:
            pairs = whole_pairs(eligible, request.count)
            if len(pairs) < request.count:
                return Unfit(((Reason.TOO_FEW_FITTING, len(pairs)),), request.count)
            return pairs
        if is_networked(self.chip) and all(
            NETWORK in usage.device.info for usage in context.usages
        ):
            return grouped(eligible, request.count, _network)
        return eligible[: request.count]

    def annotate(self, vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
        """Renders the time of scheduling and the template, memory and cores of each chip."""
        soft = context.pod.annotations.get(MODE) == SOFT
        entries = []
        for share in itertools.chain(*context.shares):
            size = None if soft else self._size(share.memory_mib)
            entry = {
                "UUID": share.uuid,
                "temp": size and size.name,
                "memory": share.memory_mib,
                "core": share.cores,
            }
            entries.append({key: value for key, value in entry.items() if value})
        time, chips = written_keys(vendor.key)
        return {time: context.seconds, chips: json.dumps(entries, separators=(",", ":"))}

    def _request_whole_modules(self, draft: ContainerDraft) -> None:
        """Rounds one chip up to a pair, for chips that come in pairs."""
        name = draft.resources.count
        count = draft.rounded(name) or 0
        if not self.chip.super_pod or count % 2 == 0:
            return
        if count > 1:
            raise PodRefused(
                f"{self.chip.common_word} device request must be 1 or 2*n, got {count}"
            )
        draft.set_amount(name, 2)

    def _round_memory(self, draft: ContainerDraft) -> None:
        """Sets the memory that the container will get, in units of the resource.

        It is rounded down; the fit rounds it up to the same template again.
        """
        name, factor = draft.resources.memory, max(draft.resources.memory_factor, 1)
        if not name:
            return
        memory_mib, amount = self.chip.memory_allocatable, draft.rounded(name)
        if amount is not None:
            memory_mib = amount * factor
            if not _is_soft(draft.pod):
                memory_mib = self._template_mib(draft, amount, memory_mib)
        draft.set_limit(name, max(memory_mib // factor, 1))
        draft.set_request(name, max(memory_mib // factor, 1))

    def _template_mib(self, draft: ContainerDraft, amount: int, memory_mib: int) -> int:
        """Returns the memory of the template. Only one chip may be divided; of a module, both chips are."""
        size = self._size(memory_mib)
        if size is None:
            raise PodRefused(f"{draft.resources.memory} {amount} is invalid")
        if not size.name:
            return size.memory_mib
        if _written_count(draft) > 1 and not (self.chip.super_pod and _is_sliced(draft)):
            raise PodRefused("vNPU not supported for multiple devices")
        if self.chip.super_pod:
            _record_slice(draft)
        return size.memory_mib

    def _size(self, memory_mib: int) -> Template | None:
        """Returns the smallest template with *memory_mib*, or the whole chip, which has no name; ``None``
        if none has."""
        for template in self.chip.templates:
            if memory_mib <= template.memory_mib:
                return template
        if memory_mib <= self.chip.memory_capacity:
            return Template("", self.chip.memory_allocatable)
        return None

    def _sized(self, request: Request, context: FitContext) -> Request:
        """Returns *request* with the memory of its template. More than a chip has is kept and fits nowhere."""
        if _is_soft(context) or request.memory_mib <= 0:
            return request
        size = self._size(request.memory_mib)
        return request if size is None else replace(request, memory_mib=size.memory_mib)


def written_keys(word: str) -> tuple[str, str]:
    """Returns the keys of the annotations with the time and the chips of the vendor *word*."""
    return "predicate-time", f"huawei.com/{word}"


def node_score(usages: Sequence[DeviceUsage], placement: Allocation, policy: NodePolicy) -> float:
    """Returns how well the containers' chips are kept in one network, at most 10 for each container."""
    return NETWORK_WEIGHT * concentration(usages, placement, _network)


def _written_count(draft: ContainerDraft) -> int:
    """Returns the number of chips with which the container came in."""
    name, container = draft.resources.count, draft.decoded
    text = draft.resources.amounts(container.limits, container.requests).get(name, "0")
    return draft.parse(name, text)


def _is_sliced(draft: ContainerDraft) -> bool:
    return f",{draft.name}," in f",{draft.pod.annotation(ONE_OF_MODULE)},"


def _record_slice(draft: ContainerDraft) -> None:
    if _is_sliced(draft):
        return
    names = draft.pod.annotation(ONE_OF_MODULE)
    if names:
        draft.pod.set_annotation(ONE_OF_MODULE, f"{names},{draft.name}")
    else:
        draft.pod.set_annotation(ONE_OF_MODULE, draft.name)


def _cores_only_in_software(draft: ContainerDraft) -> None:
    name = draft.resources.cores
    if not _is_soft(draft.pod) and (draft.rounded(name) or 0) > 0:
        raise PodRefused(f"{name} is only supported in {SOFT} (soft split) mode")


def _is_soft(pod: FitContext | PodDraft) -> bool:
    return pod.annotation(MODE) == SOFT


def _network(usage: DeviceUsage) -> float | None:
    network = usage.device.info.get(NETWORK)
    if isinstance(network, bool) or not isinstance(network, (int, float)):
        return None
    return network
