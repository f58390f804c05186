"""``hami simulate`` says what the real scheduler does next, in random small worlds."""

import contextlib
import itertools
import json
import os
import random
import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest

from testing import audit
from testing.eventually import eventually
from testing.kube import ApiError
from testing.nodes import LOCK_FREE, gpu, mig_gpu
from testing.people import DEVICE_CONFIG, hami
from testing.pods import container, init, pod, sidecar
from testing.sandbox import ALLOCATED, Sandbox

WORLDS = 200
QUOTAS = 5
"""Worlds with a quota, each in a namespace of its own."""
WORLD = "hami-e2e/world"
MODELS = {"A100": 81_920, "A40": 46_068, "T4": 15_360}


class World:
    """A few nodes for a few pods. Labels keep others away from them in the cluster; in a simulation, which does not
    look at labels of nodes, the type of the devices does."""

    def __init__(self, number, sandbox, chance):
        self.name = f"w{number:03}"
        self.sandbox = sandbox
        self.labels = {WORLD: self.name}
        self._chance = chance

    def add_nodes(self):
        for number in range(self._chance.choice((1, 1, 1, 2, 2, 3))):
            name = f"{self.name}-{number}"
            self.sandbox.add_gpu_nodes(
                {name: self._cards()}, ready=False, labels=self.labels, annotations=LOCK_FREE
            )
            if self._chance.random() < 0.15:
                self.sandbox.annotate_node(name, {"hami.io/device-cordon": self.sandbox.uuid(name)})

    def add_quota(self):
        hard = {
            "limits.nvidia.com/gpumem": str(self._chance.randrange(10_000, 200_000)),
            "limits.nvidia.com/gpucores": str(self._chance.randrange(50, 300)),
        }
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q"},
            "spec": {"hard": hard},
        }
        self.sandbox.kube.create(quota, self.sandbox.namespace)

    def some_pods(self, round):
        """Returns pods, in the order in which they are created."""
        count = self._chance.choice((1, 2, 2, 3))
        return [
            self._pod(f"{self.name}-{round}-{number}", is_last=number == count - 1)
            for number in range(count)
        ]

    def create(self, item):
        """Creates a pod, which may be denied."""
        try:
            self.sandbox.create(item)
        except ApiError as error:
            if error.status not in (400, 403, 422):
                raise

    def _cards(self):
        count, kind = self._chance.randrange(1, 5), self._chance.random()
        if kind < 0.1:
            return [mig_gpu(model=f"NVIDIA {self.name} A100") for _ in range(count)]
        model = self._chance.choice(list(MODELS))
        return [
            gpu(
                model=f"NVIDIA {self.name} {model}",
                memory_mib=MODELS[model],
                numa=index // 2,
                slots=self._chance.choice((1, 2, 10)),
                healthy=self._chance.random() > 0.1,
            )
            for index in range(count)
        ]

    def _pod(self, name, *, is_last):
        """Returns a pod. Only the last one may have an init container: when that ends, devices are free again."""
        chance = self._chance
        inits = [init(**self._asked())] if is_last and chance.random() < 0.2 else []
        if chance.random() < 0.15:
            inits.append(sidecar(**self._asked()))
        made = pod(
            name,
            containers=[container(**self._asked())],
            inits=inits,
            annotations=self._wishes(),
            labels=self.labels,
        )
        made["metadata"]["namespace"] = self.sandbox.namespace
        made["spec"]["nodeSelector"] = self.labels
        return made

    def _asked(self):
        chance, asked = self._chance, {"gpu": self._chance.choice((1, 1, 1, 2, 3))}
        if chance.random() < 0.6:
            asked["gpumem"] = chance.randrange(500, 30_000)
        elif chance.random() < 0.7:
            asked["percent"] = chance.randrange(5, 101)
        if chance.random() < 0.6:
            asked["gpucores"] = chance.choice((0, 10, 25, 50, 100))
        return asked

    def _wishes(self):
        chance, kind = self._chance, self.name
        if chance.random() < 0.2:
            kind = f"{self.name} {chance.choice(list(MODELS))}"
        wishes = {"nvidia.com/use-gputype": kind}
        for key, values in (
            ("hami.io/node-scheduler-policy", ("binpack", "spread")),
            ("hami.io/gpu-scheduler-policy", ("binpack", "spread", "mutex")),
            ("nvidia.com/numa-bind", ("true",)),
            ("nvidia.com/vgpu-mode", ("hami-core", "mig")),
            (
                "hami.io/device-scoring-weights",
                ("slot=0,core=0,memory=1", "slot=1,core=2,memory=0"),
            ),
        ):
            if chance.random() < 0.2:
                wishes[key] = chance.choice(values)
        if chance.random() < 0.1:
            wishes["nvidia.com/nouse-gpuuuid"] = self.sandbox.uuid(f"{self.name}-0")
        # by the default policy, the simulation would decide by the usual pods that it learns from the cluster
        wishes.setdefault("hami.io/node-scheduler-policy", "binpack")
        return wishes


@pytest.fixture
def worlds(sandbox, scheduler):
    """The worlds, with nodes that are ready and known to the scheduler. HAMI_E2E_SEED makes those of an earlier run."""
    seed = int(os.environ.get("HAMI_E2E_SEED") or secrets.randbelow(1 << 32))
    print(f"HAMI_E2E_SEED={seed}")
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        own = [stack.enter_context(Sandbox.opened(sandbox.kube)) for _ in range(QUOTAS)]
        homes = [*own, *(sandbox for _ in range(WORLDS - QUOTAS))]
        made = [
            World(number, home, random.Random(f"{seed} {number}"))
            for number, home in enumerate(homes)
        ]
        for world in made[:QUOTAS]:
            world.add_quota()
        list(pool.map(World.add_nodes, made))
        all_homes = (sandbox, *own)
        for home in all_homes:
            home.wait_schedulable(home.nodes)
        names = {home.node(name)["metadata"]["name"] for home in all_homes for name in home.nodes}
        eventually(
            lambda: all(f'"{name}"' in text for text in [scheduler.metrics()] for name in names),
            "the scheduler knows the nodes",
        )
        yield made


def settle(kube):
    """Waits until each pod of the worlds runs or is refused. The refused are deleted at once: the scheduler would ask
    again and again."""

    def waiting():
        pods = kube.list("Pod", labelSelector=WORLD, fieldSelector="status.phase=Pending")
        for item in filter(is_refused, pods):
            kube.delete(
                "Pod", item["metadata"]["name"], item["metadata"]["namespace"], grace_seconds=0
            )
        return pods

    eventually(
        lambda: not waiting(),
        "all pods of the worlds run or are refused",
        timeout=180,
        interval=0.5,
    )


def is_refused(item):
    return any(
        (one["type"], one.get("reason")) == ("PodScheduled", "Unschedulable")
        for one in item["status"].get("conditions") or ()
    )


def decide(kube, worlds, pods):
    """Creates *pods*, those of each world one after the other. A pod whose scheduling fails for a moment is retried,
    and the next one would otherwise overtake it."""
    with ThreadPoolExecutor(4) as pool:
        for wave in itertools.zip_longest(*pods):
            created = [(world, item) for world, item in zip(worlds, wave) if item is not None]
            list(pool.map(lambda pair: pair[0].create(pair[1]), created))
            settle(kube)


def places(kube):
    """Maps each pod of the worlds, all of which are bound, to its node and devices."""
    return {
        item["metadata"]["name"]: (item["spec"]["nodeName"], cards(item))
        for item in kube.list("Pod", labelSelector=WORLD)
    }


def cards(item):
    """Returns the indexes of the pod's devices, which are the ends of their UUIDs."""
    shares = [
        share
        for shares in audit.parse(item["metadata"]["annotations"][ALLOCATED])
        for share in shares
    ]
    return {share.uuid.partition("[")[0].rpartition("-")[2] for share in shares}


def story(kube, name, found, expected):
    """Returns what was simulated for the pod, and what happened to it."""
    events = kube.list("Event", fieldSelector=f"involvedObject.name={name}")
    return "\n  ".join(
        [
            f"{name}: expected {expected}, found {found}",
            *(f"{event['reason']}: {event['message']}" for event in events),
        ]
    )


def simulated(kubeconfig, pods):
    """Maps each of *pods* that would be bound to its node and devices."""
    answer = hami(
        kubeconfig,
        "simulate",
        "-f",
        "-",
        "-o",
        "json",
        f"--device-config-file={DEVICE_CONFIG}",
        typed=json.dumps({"kind": "List", "items": pods}),
    )
    assert answer.status in (0, 1), answer.errors
    return {one["pod"]: (one["node"], set(one["cards"])) for one in answer.document["pods"]}


def test_a_simulation_agrees_with_the_scheduler(local, worlds):
    """The pods of the second round find those of the first in the cluster."""
    kube, before = local.kube, {}
    for round in range(2):
        pods = [world.some_pods(round) for world in worlds]
        expected = before | simulated(local.kubeconfig, [item for each in pods for item in each])
        decide(kube, worlds, pods)
        found = places(kube)
        wrong = {name for name, _ in found.items() ^ expected.items()}
        assert not wrong, "\n".join(
            story(kube, name, found.get(name), expected.get(name)) for name in sorted(wrong)
        )
        assert len(found) > len(before)
        before = found
