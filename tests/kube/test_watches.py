"""The watches of a whole cluster."""

import pytest

from hami.errors import ClusterError
from hami.kube.watches import Watches
from hami.model import QuotaLimits
from testing.builders import gpus, node, pod
from testing.cases import cases
from testing.stores import SmallStore


class OneList:
    """An API that refuses each list."""

    def __init__(self):
        self.asked = []

    def request(self, method, path, *, query=None):
        self.asked.append((method, path, query))
        raise ClusterError("unable to parse requirement", 400)


@cases(
    "selector, query",
    ("gpu=on,zone notin (b)", {"labelSelector": "gpu=on,zone notin (b)"}),
    ("", {}),
)
def test_the_api_server_selects_the_nodes(selector, query):
    api = OneList()
    Watches(api, nodes=None, pods=None, quotas=None, node_selector=selector).tasks[0].step()
    assert api.asked == [("GET", "/api/v1/nodes", {"limit": "500"} | query)]


def test_pods_are_listed_after_nodes(monkeypatch):
    monkeypatch.setattr("hami.kube.reflector.STOP_S", 0.0)
    api = OneList()
    store = SmallStore()
    nodes, pods, _ = Watches(
        api, nodes=store.nodes, pods=store.pods, quotas=store.quotas, node_selector=""
    ).tasks
    pods.step()
    assert api.asked == []
    nodes.synced.set()
    pods.step()
    assert [path for _, path, _ in api.asked] == ["/api/v1/pods"]


@cases(
    "kind, make, find",
    (
        "nodes",
        lambda version: node("n1", resource_version=version),
        lambda cache: cache.nodes.get("n1"),
    ),
    (
        "pods",
        lambda version: pod(gpus(), name="a", resource_version=version),
        lambda cache: cache.pods.named("default", "a"),
    ),
    (
        "quotas",
        lambda version: QuotaLimits(namespace="n", name="q", uid="u", resource_version=version),
        lambda cache: cache.quotas.of("n").get("u"),
    ),
)
def test_after_a_restore_of_etcd_earlier_versions_and_deleted_objects_are_taken(kind, make, find):
    cache = SmallStore()
    sink = getattr(cache, kind)
    sink.upsert(make("90"))
    listed = cache.time.seconds = cache.time.seconds + 1
    sink.upsert(make("50"), listed)
    sink.upsert(make("40"))
    assert int(getattr(find(cache), "version", 0) or find(cache).resource_version) == 50
    sink.remove(make("60"))
    cache.time.seconds += 1
    sink.upsert(make("30"))
    assert kind == "quotas" or find(cache) is None
    sink.upsert(make("30"), cache.time.seconds)
    assert find(cache) is not None


@pytest.mark.parametrize("kind", ["nodes", "pods"])
def test_a_list_does_not_replace_what_has_been_seen_since_it_began(kind):
    cache = SmallStore()
    sink = getattr(cache, kind)
    make = (
        (lambda version: node("a", resource_version=version))
        if kind == "nodes"
        else (lambda version: pod(gpus(), name="a", resource_version=version))
    )
    find = (
        (lambda: cache.nodes.get("a"))
        if kind == "nodes"
        else (lambda: cache.pods.named("default", "a"))
    )
    listed = cache.time.seconds
    cache.time.seconds += 1
    sink.upsert(make("90"))
    sink.upsert(make("50"), listed)
    assert int(getattr(find(), "version", 0) or find().resource_version) == 90
    sink.remove(make("95"))
    sink.upsert(make("90"), listed)
    assert find() is None
