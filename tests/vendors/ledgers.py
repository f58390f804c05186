"""A cache over a few nodes, and pods that are placed on them one after the other."""

from hami.cache.cache import Cache, Policies
from hami.scheduling.decide import Choice
from tests.builders import pod
from tests.vendors.chart import CHART
from tests.world import Clock


def books(*nodes):
    """A cache that knows *nodes*."""
    clock = Clock()
    cache = Cache(CHART, Policies(), clock=clock, now=clock.now)
    for node in nodes:
        cache.nodes.upsert(node)
    return cache


def run(cache, name, *containers):
    """Place a pod, confirm it and have it bound; ``None`` when it does not fit."""
    asked = pod(*containers, name=name)
    answer = cache.choose(asked, [*cache.views()])
    if not isinstance(answer, Choice):
        return None
    reservation = cache.begin_bind(asked.ref, answer.node)
    cache.confirm(reservation)
    bound = pod(*containers, name=name, node_name=answer.node, annotations=reservation.annotations)
    cache.pods.upsert(bound)
    return bound
