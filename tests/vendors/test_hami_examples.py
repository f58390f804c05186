"""HAMi's example files: each pod is admitted, requests what HAMi reads in it, and gets devices."""

import json

import pytest

from hami.codec.objects import parse_node
from hami.codec.pods import convert_pod
from hami.inspect.cluster import InspectedCluster
from hami.state import dry_run
from hami.vendors.admission import admit_pod
from hami.vendors.draft import PodDraft
from hami.vendors.vocabulary import Vocabulary
from testing.records import record
from testing.vendor_nodes import vendor_node
from tests.vendors.hami_examples import EXAMPLES, FILES, WITHOUT_HAMI, mig_outfits, outfits


@pytest.fixture(scope="module")
def cluster():
    nodes = [vendor_node("n", outfits()), vendor_node("m", mig_outfits())]
    return InspectedCluster(record([parse_node(json.dumps(node).encode()) for node in nodes]))


def pod_of(example):
    """The pod of *example*, as a user creates it."""
    containers = []
    for number, limits in enumerate(example.containers):
        resources = {"limits": dict(limits)}
        if example.requested:
            resources["requests"] = dict(limits)
        containers.append({"name": f"c{number}", "resources": resources})
    meta = {"name": "p", "namespace": "default", "uid": "u", "annotations": example.annotations}
    return {"metadata": meta, "spec": {"containers": containers}}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.file)
def test_each_example_gets_its_devices(cluster, example):
    draft = PodDraft(pod_of(example))
    admit_pod(Vocabulary(cluster.vendors), draft)
    assert draft.requests_devices
    choice = dry_run.choose(cluster.view, convert_pod(draft.render()), [example.node])
    shares = [
        tuple((share.memory_mib, share.cores) for share in container)
        for container in choice.placement
        if container
    ]
    assert tuple(shares) == example.shares


def test_the_table_has_every_file():
    files = {example.file.partition("#")[0] for example in EXAMPLES} | set(WITHOUT_HAMI)
    assert len(files) == FILES
