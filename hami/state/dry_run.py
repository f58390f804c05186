"""The decisions that would be made about a pod in a view. Nothing is reserved, and the view stays as it is.

Nodes that differ from the table of the view are few: a choice judges each of them by itself, and what explains a
refusal makes a table of its own. Each function raises MalformedInput for an unreadable annotation of the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Any

from numpy.typing import NDArray

from hami.model import Allocation, Pod, Unfit
from hami.scheduling.node_order import NodeOrder, node_order_of, weights
from hami.scheduling.placement import NodeUsage, place_pod
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.quota import QuotaCheck, check_quota
from hami.scheduling.refusal import Choice, NodeRefusal, Refusal
from hami.scheduling.score import node_score
from hami.scheduling.usage import charged_by
from hami.state.bookings import Booking, booking_of
from hami.state.table import Table
from hami.state.verdicts import vendor_score
from hami.state.view import View, left_of

Array = NDArray[Any]


def choose(view: View, pod: Pod, names: Sequence[str]) -> Choice | None:
    """Returns the choice among the nodes *names*; ``None`` if none fits, or *pod* requests no device."""
    if not view.overlay:
        return choose_from(view, pod, view.verdicts.rows(names))
    request = view.request_of(pod)
    if request is None:
        return None
    order = node_order_of(pod, view.facts.policies.node)
    quota = _check_quota(view, pod, request)
    changed = [name for name in names if name in view.overlay]
    names = [name for name in names if name not in view.overlay]
    choice = None
    if names:
        choice = view.verdicts.choose(request, view.verdicts.rows(names), order, quota)
    if changed:
        return _better(view, choice, changed, request, order, quota)
    return choice


def choose_from(view: View, pod: Pod, rows: Array) -> Choice | None:
    """Returns the choice among *rows* of the table; ``None`` if none fits, or *pod* requests no device. No node of
    *view* differs from the table."""
    request = view.request_of(pod)
    if request is None or not len(rows):
        return None
    order = node_order_of(pod, view.facts.policies.node)
    return view.verdicts.choose(request, rows, order, _check_quota(view, pod, request))


def refuse(view: View, pod: Pod, names: Sequence[str]) -> Refusal | None:
    """Returns why those of the nodes *names* that *pod* does not fit do not; ``None`` if it requests no device."""
    request = view.request_of(pod)
    if request is None:
        return None
    merged = view.merged
    verdicts = merged.verdicts
    quota = _check_quota(merged, pod, request)
    return verdicts.refuse(request, names, verdicts.rows(names), quota)


def closest(view: View, refusal: Refusal, count: int | None = None) -> list[NodeRefusal]:
    """Returns the refused nodes that are closest to serving, at most *count*, nearest first."""
    return view.merged.verdicts.closest(refusal, count)


def assume(view: View, pod: Pod, names: Sequence[str]) -> tuple[Choice | Refusal | None, View]:
    """Returns the decision on *pod*, ``None`` if it requests no device, and the view in which it is carried out."""
    choice = choose(view, pod, names)
    if choice is None:
        return refuse(view, pod, names), view
    return choice, placed(view, pod, choice)


def placed(view: View, pod: Pod, choice: Choice) -> View:
    """Returns the view in which *pod* holds what *choice* gives it."""
    request = view.request_of(pod)
    assert request is not None, "a chosen pod requests devices"
    return view.what_if(with_=[booking_of(pod, request, choice)])


def may_preempt_on(view: View, pod: Pod, names: Sequence[str]) -> list[str]:
    """Returns those of the nodes *names*, lowest priority first, where pods of lower priority than *pod* hold devices
    and it may fit if nobody does."""
    request = view.request_of(pod)
    if request is None:
        return []
    merged = view.merged
    rows = merged.verdicts.rows(names)
    rows = merged.verdicts.may_preempt_on(request, rows, pod.priority)
    return [merged.table.names[row] for row in rows.tolist()]


def fits_without(
    view: View, pod: Pod, node: str, uids: Collection[str]
) -> Callable[[Collection[str]], bool]:
    """Returns a function that reports whether *pod* fits *node* without some of the pods *uids*.

    It is for many questions about one node.
    """
    request = view.request_of(pod)
    # what ends elsewhere counts for quotas, too
    if request is None or view.quotas_of(pod.ref.namespace):
        return lambda ended: choose(view.what_if(without=ended), pod, [node]) is not None
    bookings: dict[str, Booking] = {}
    for booking in view.bookings_on(node):
        if booking.uid in uids:
            bookings[booking.uid] = booking
    idle = view.what_if(without=bookings).usages(node)

    def fits(ended: Collection[str]) -> bool:
        usages = idle
        for uid, booking in bookings.items():
            if uid not in ended:
                usages = _booked_on(usages, booking)
        return not isinstance(place_pod(usages, request), Unfit)

    return fits


def loss_without(
    view: View, pod: Pod, node: str, free: Collection[str]
) -> Callable[[Collection[str]], float] | None:
    """Returns a function that returns what *pod* would cost on *node* without some pods (uids), and without those that
    are *free*; ``None`` if its node policy does not ask."""
    request = view.request_of(pod)
    order = node_order_of(pod, view.facts.policies.node)
    if request is None or not order.by_room:
        return None

    def loss(ended: Collection[str]) -> float:
        losses = _losses(view.what_if(without={*free, *ended}), [node], request, order)
        return losses.get(node, 0.0)

    return loss


def _booked_on(usages: NodeUsage, booking: Booking) -> NodeUsage:
    """Returns *usages* of a node with what *booking* holds on it."""
    made = dict(usages)
    for vendor, charges in booking.charges:
        by_uuid = {charge.uuid: charge for charge in charges}
        of_vendor = list(made.get(vendor, ()))
        for place, usage in enumerate(of_vendor):
            charge = by_uuid.get(usage.device.uuid)
            if charge is not None:
                of_vendor[place] = charged_by(usage, charge)
        made[vendor] = tuple(of_vendor)
    return made


def _check_quota(view: View, pod: Pod, request: PodRequest) -> QuotaCheck:
    budgets = view.budgets(pod.ref.namespace, pod.scope)
    if not budgets:
        return QuotaCheck()
    return check_quota(request, budgets, view.table.sizes())


def _losses(
    view: View, names: Sequence[str], request: PodRequest, order: NodeOrder
) -> dict[str, float]:
    """Returns what a pod that makes *request* would cost on the nodes *names*, where the policy of *order* asks."""
    if not order.by_room:
        return {}
    changed = Table()
    for name in names:
        if name not in view.overlay:
            continue
        for vendor, usages in view.overlay[name].items():
            changed.set_devices(name, vendor, tuple(usage.device for usage in usages))
        for booking in view.bookings_on(name):
            changed.bookings.put(booking)
        changed.set_left(name, left_of(view, name))
    return view.verdicts.losses(names, request, order, changed)


def _better(
    view: View,
    choice: Choice | None,
    changed: Sequence[str],
    request: PodRequest,
    order: NodeOrder,
    quota: QuotaCheck,
) -> Choice | None:
    """Returns *choice*, or a better one among the *changed* nodes."""
    budgets = dict((*quota.decided, *quota.open))
    candidates = len(changed)
    fitting: dict[str, float] = {}
    placements: dict[str, Allocation] = {}
    if choice is not None:
        candidates += choice.candidates
        fitting.update(choice.fitting)
        placements[choice.node] = choice.placement
    for name in changed:
        usages = view.overlay[name]
        placement = place_pod(usages, request, budgets)
        if isinstance(placement, Unfit):
            continue
        placements[name] = placement
        score = node_score(list(chain.from_iterable(usages.values())))
        by_vendors = vendor_score(request, usages, placement, order.policy)
        fitting[name] = score + order.sign * by_vendors
    if not placements:
        return None
    labels = {name: view.labels_of(name) for name in fitting}
    preferred = dict(zip(fitting, weights(order.preferences, list(fitting), labels).tolist()))
    losses = _losses(view, list(fitting), request, order)
    ordered = sorted(
        fitting.items(),
        key=lambda item: (
            -preferred[item[0]],
            losses.get(item[0], 0.0),
            -order.sign * item[1],
            item[0],
        ),
    )
    node = next(name for name, _ in ordered if name in placements)
    unfit = candidates - len(ordered)
    return Choice(node, placements[node], tuple(reversed(ordered)), unfit, candidates)
