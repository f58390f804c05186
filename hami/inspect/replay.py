"""``hami replay``: the decisions of a record once more, in the order in which the pods were placed.

Each pod is decided beside what was recorded before it, so that one difference does not cause others. Pods that had
ended by the time of the record are missing, which is itself a reason for differences.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hami.inspect.cluster import InspectedCluster
from hami.inspect.record import ClusterRecord
from hami.inspect.simulate import unbound
from hami.inspect.tables import Column, Style, render_rows
from hami.model import Pod
from hami.state.binding import assigned_at, bound_at


class Replayed(msgspec.Struct, rename="camel", frozen=True):
    """One decision. *cards*, *now_cards*: UUIDs, sorted. *now*: empty if no node fits."""

    pod: str
    node: str
    now: str
    cards: tuple[str, ...]
    now_cards: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Reports whether node and cards are the same."""
        return (self.node, self.cards) == (self.now, self.now_cards)


def replay(record: ClusterRecord) -> list[Replayed]:
    """Returns the decision on each bound pod that holds devices, in the order in which they were placed."""
    cluster = InspectedCluster(record)
    held = cluster.view.bookings
    bound = sorted((pod for pod in record.pods if pod.node_name and pod.ref.uid in held), key=_order)
    view, names = cluster.view.what_if(without=held), sorted(cluster.nodes)
    decisions = []
    for pod in bound:
        booking = held[pod.ref.uid]
        before = {charge.uuid for _, charges in booking.charges for charge in charges}
        choice = view.choose(unbound(pod), names)
        after = {share.uuid for shares in choice.placement for share in shares} if choice is not None else set()
        decisions.append(Replayed(str(pod.ref), pod.node_name, choice.node if choice is not None else "",
                                  tuple(sorted(before)), tuple(sorted(after))))
        view = view.what_if(with_=[booking])
    return decisions


def render_replay(found: Sequence[Replayed], style: Style) -> str:
    """Returns the differences as a table, and their number."""
    different = [one for one in found if not one.is_same]
    head = f"{len(found)} {'decision' if len(found) == 1 else 'decisions'}, {len(different)} of them different"
    return f"{head}\n\n{render_rows(different, _COLUMNS, style)}" if different else head


def _order(pod: Pod) -> tuple[int, str, str]:
    return assigned_at(pod) or bound_at(pod), pod.created, str(pod.ref)


_COLUMNS: tuple[Column[Replayed], ...] = (
    Column("POD", lambda row: row.pod),
    Column("NODE", lambda row: row.node),
    Column("NOW", lambda row: row.now or "none fits"),
    Column("CARDS", lambda row: ",".join(row.cards)),
    Column("CARDS NOW", lambda row: ",".join(row.now_cards)),
)
