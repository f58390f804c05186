"""kube-scheduler places pods without devices as `testing.kube_scores` says. No program of HAMi runs here."""

import random

import numpy
import pytest

from testing import binaries
from testing.cluster import LocalCluster
from testing.kube import Object
from testing.kube_scores import best_nodes
from testing.nodes import fake_node
from testing.pods import pod

FIRST = (1, 37)  # the version whose formula it is
pytestmark = pytest.mark.since(*FIRST)
PODS, NODES = 300, 24
NAMESPACE = "default"


def default_profile(config: Object) -> None:
    config["profiles"] = [{"schedulerName": "default-scheduler"}]


def a_node(name: str, milli_cpu: int, memory_mib: int) -> Object:
    made = fake_node(name, ())
    room = {"cpu": f"{milli_cpu}m", "memory": f"{memory_mib}Mi", "pods": str(PODS)}
    made["status"] = {"capacity": room, "allocatable": room}
    return made


def test_each_pod_gets_one_of_the_nodes_with_the_highest_score():
    """Of equal nodes it is any: kube-scheduler takes one at random."""
    if binaries.find().minor < FIRST:
        pytest.skip("earlier versions may score the balance of a node, not how a pod changes it")
    rng = random.Random(7)
    names = [f"n{number:02}" for number in range(NODES)]
    amounts = numpy.array(
        [
            [rng.choice((16_000, 32_000, 64_000, 96_000)) for _ in names],
            [1024 * rng.choice((32, 64, 256, 384)) for _ in names],
        ]
    )
    requested = numpy.zeros_like(amounts)
    with LocalCluster.started(adjust=default_profile, extender=False, durable=False) as cluster:
        kube = cluster.kube
        for name, cpu, memory in zip(names, *amounts.tolist()):
            kube.create(a_node(name, cpu, memory))
        kube.wait(
            "Node", lambda nodes: len(nodes) == NODES and all(map(is_untainted, nodes.values()))
        )
        for number in range(PODS):
            asked = rng.randrange(100, 6000), rng.randrange(256, 24_000)
            fits = (amounts - requested >= numpy.array(asked)[:, None]).all(axis=0)
            name = f"p{number}"
            limits = {"cpu": f"{asked[0]}m", "memory": f"{asked[1]}Mi"}
            kube.create(pod(name, scheduler="default-scheduler", **limits), NAMESPACE)
            if not fits.any():
                continue
            node = kube.wait(
                "Pod",
                lambda pods, name=name: pods[name]["spec"].get("nodeName"),
                NAMESPACE,
                fieldSelector=f"metadata.name={name}",
            )
            best = [names[place] for place in best_nodes(amounts, requested, asked, fits)]
            assert node in best, number
            requested[:, names.index(node)] += asked
        kube.close()


def is_untainted(node: Object) -> bool:
    return not node["spec"].get("taints")
