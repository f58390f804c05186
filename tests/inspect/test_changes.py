"""Changes with which a waiting pod would fit: the decision says so, also when it is asked anew."""

import random
from dataclasses import replace

import pytest

from hami.inspect.changes import find_changes
from hami.inspect.world import World
from hami.scheduling.refusal import Choice
from hami.scheduling.refusal import refused_nodes
from tests.builders import gpu, gpus, node, pod, quota
from tests.inspect.worlds import PENDING, held, record, some_world

A100 = {"model": "NVIDIA A100", "memory_mib": 80_000}
T4 = {"model": "NVIDIA T4", "memory_mib": 16_000}
TYPE = "nvidia.com/use-gputype"


def changes_of(cluster):
    """Returns the changes for the pod that waits in *cluster*; ``None`` if it fits."""
    world = World(cluster)
    waiting = world.pod_named("default", PENDING)
    if world.cache.choose(waiting, world.offered()) is not None:
        return None
    refusal = world.cache.refuse(waiting, world.offered())
    return find_changes(world, waiting, [found.node for found in refused_nodes(refusal, world.cache.node_usage)])


def texts(cluster):
    return [" and ".join(change.texts) for change in changes_of(cluster)]


def waiting(*containers, **notes):
    return pod(*containers, name=PENDING, annotations=notes)


@pytest.mark.parametrize("nodes, pods, asked, notes, found", [
    ([node("n", gpu(**T4))], [], gpus(1, 20_000), {}, ["it asks for at most 16,000 MiB of each NVIDIA device"]),
    ([node("n", gpu(**T4))], [held("a", "n", ("GPU-0", 6000, 30))], gpus(1, 1000, 90), {},
     ["it asks for at most 70 cores of each NVIDIA device", "pod default/a ends"]),
    ([node("n", gpu(**T4))], [], gpus(2, 1000), {}, ["each container asks for at most 1 NVIDIA device"]),
    ([node("n", gpu(**T4))], [], gpus(1, 1000), {TYPE: "A100"},
     [f"it asks for the type NVIDIA T4 (annotation {TYPE})"]),
    ([node("n", gpu(**T4))], [], gpus(1, 20_000), {TYPE: "A100"},
     [f"it asks for at most 16,000 MiB of each NVIDIA device and it asks for the type NVIDIA T4 (annotation {TYPE})"]),
    ([node("n", gpu(**T4), annotations={"hami.io/device-cordon": "GPU-0"})], [], gpus(1, 1000), {},
     ["card GPU-0 of node n is uncordoned (annotation hami.io/device-cordon)"]),
    ([node("m", gpu(**T4)), replace(node("n", gpu(**A100)), unschedulable=True)], [], gpus(1, 20_000), {},
     ["it asks for at most 16,000 MiB of each NVIDIA device", "node n is uncordoned (kubectl uncordon n)"]),
    ([node("n", gpu(slots=1, **T4))], [held("a", "n", ("GPU-0", 10, 0))], gpus(1, 1000), {}, ["pod default/a ends"]),
    ([node("n", gpu(**T4))], [held("a", "n", ("GPU-0", 10, 0))], gpus(1, 1000),
     {"hami.io/gpu-scheduler-policy": "mutex"}, ["its devices may be shared with other pods", "pod default/a ends"]),
    ([node("n", gpu("a", numa=0, **T4), gpu("b", numa=1, **T4))], [], gpus(2, 1000), {"nvidia.com/numa-bind": "true"},
     ["each container asks for at most 1 NVIDIA device", "its devices may be on several NUMA nodes"]),
    ([node("n", gpu(slots=1, **T4))], [held("a", "n", ("GPU-0", 10, 0))], gpus(1, 20_000), {},
     ["it asks for at most 16,000 MiB of each NVIDIA device and pod default/a ends"]),
    ([node("n", gpu(healthy=False, **T4))], [], gpus(1, 1000), {}, []),
], ids=["memory", "cores", "devices", "type", "memory and type", "card", "node", "slot", "mutex", "numa",
        "memory and a pod", "nothing"])
def test_the_smallest_changes(nodes, pods, asked, notes, found):
    assert texts(record(nodes, [*pods, waiting(asked, **notes)])) == found


def test_the_smallest_pod_that_suffices_ends():
    pods = [held(name, "n", ("GPU-0", memory, 0)) for name, memory in (("big", 9000), ("small", 1000), ("fit", 5000))]
    assert texts(record([node("n", gpu(**T4))], [*pods, waiting(gpus(1, 5000))]))[-1] == "pod default/fit ends"


def test_a_quota_may_be_higher():
    found = changes_of(record([node("n", gpu(**T4))], [waiting(gpus(1, 3000))], [quota(gpumem=2000)]))
    assert [change.texts for change in found] == [
        ("it asks for at most 2,000 MiB of each NVIDIA device",),
        ("the quota quota allows more of limits.nvidia.com/gpumem than 2000",)]


def test_the_search_leaves_the_cluster_as_it_was():
    cluster = some_world(random.Random(3))
    world = World(cluster)
    before = world.cache.snapshot()
    find_changes(world, world.pod_named("default", PENDING), world.offered())
    after = world.cache.snapshot()
    assert {name: dict(usages) for name, usages in after.nodes.items()} == {
        name: dict(usages) for name, usages in before.nodes.items()}
    assert (after.used, after.quotas) == (before.used, before.quotas)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(8))
def test_nearly_all_of_a_thousand_waiting_pods_get_a_change_that_works(seed):
    """The change is applied to the record, and a scheduler that knows nothing else is asked for a node."""
    chance, asked, helped = random.Random(seed), 0, 0
    while asked < 125:
        cluster = some_world(chance)
        found = changes_of(cluster)
        if found is None:
            continue
        asked += 1
        helped += bool(found)
        for change in found:
            changed = World(change.applied(cluster))
            answer = changed.cache.assume(changed.pod_named("default", PENDING), changed.offered())
            assert isinstance(answer, Choice), (change, cluster)
    assert helped >= 0.95 * asked
