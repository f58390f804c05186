"""A ledger over a few nodes, and pods that are placed on them one after the other."""

from hami.cluster.ledger import Ledger, Policies
from hami.scheduling.decide import Choice
from tests.builders import pod
from tests.vendors.chart import CHART
from tests.world import Clock


def books(*nodes):
    """A ledger that knows *nodes*."""
    clock = Clock()
    ledger = Ledger(CHART, Policies(), clock=clock, now=clock.now)
    for node in nodes:
        ledger.nodes.upsert(node)
    return ledger


def run(ledger, name, *containers):
    """Place a pod, confirm it and have it bound; ``None`` when it does not fit."""
    asked = pod(*containers, name=name)
    answer = ledger.choose(asked, [*ledger.views()])
    if not isinstance(answer, Choice):
        return None
    reservation = ledger.begin_bind(asked.ref, answer.node)
    ledger.confirm(reservation)
    bound = pod(*containers, name=name, node_name=answer.node, annotations=reservation.annotations)
    ledger.pods.upsert(bound)
    return bound
