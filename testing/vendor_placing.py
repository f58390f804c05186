"""A cache over a few nodes, and pods that are placed on them one after the other."""

from hami.scheduling.refusal import Choice
from hami.state.store import Store
from hami.state.view import Policies
from testing.builders import device_usage, pod
from testing.replicas import Clock
from testing.vendor_chart import CHART


def cache_of(*nodes):
    """A cache that knows *nodes*."""
    clock = Clock()
    cache = Store(CHART, Policies(), clock=clock, now=clock.now)
    for node in nodes:
        cache.nodes.upsert(node)
    return cache


def place_pod(cache, name, *containers):
    """Places and binds a pod; ``None`` when it does not fit."""
    requested = pod(*containers, name=name)
    answer = cache.filtering.assume(requested, [*device_usage(cache)])
    if not isinstance(answer, Choice):
        return None
    reservation = cache.bindings.start(requested.ref, answer.node)
    cache.bindings.prepare(reservation)
    bound = pod(*containers, name=name, node_name=answer.node, annotations=reservation.annotations)
    cache.pods.upsert(bound)
    return bound
