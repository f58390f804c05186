"""The watches of the scheduler."""

import pytest

from hami.errors import ClusterError
from hami.model import QuotaLimits
from hami.scheduler.watches import Watches
from tests.builders import gpus, node, pod
from tests.cache.caches import SmallCache


class OneList:
    """An API that refuses each list."""

    def __init__(self):
        self.asked = []

    def request(self, method, path, *, query=None):
        self.asked.append((method, path, query))
        raise ClusterError("unable to parse requirement", 400)


@pytest.mark.parametrize("selector, query", [
    ("gpu=on,zone notin (b)", {"labelSelector": "gpu=on,zone notin (b)"}), ("", {}),
])
def test_the_api_server_selects_the_nodes(selector, query):
    api = OneList()
    Watches(api, SmallCache(), node_selector=selector).tasks[0].step()
    assert api.asked == [("GET", "/api/v1/nodes", {"limit": "500"} | query)]


def test_pods_are_listed_after_nodes(monkeypatch):
    monkeypatch.setattr("hami.kube.reflector.STOP_S", 0.0)
    api = OneList()
    nodes, pods, _ = Watches(api, SmallCache(), node_selector="").tasks
    pods.step()
    assert api.asked == []
    nodes.synced.set()
    pods.step()
    assert [path for _, path, _ in api.asked] == ["/api/v1/pods"]


@pytest.mark.parametrize(("kind", "make", "find"), [
    ("nodes", lambda version: node("n1", resource_version=version), lambda cache: cache.nodes.get("n1")),
    ("pods", lambda version: pod(gpus(), name="a", resource_version=version),
     lambda cache: cache.pods.named("default", "a")),
    ("quotas", lambda version: QuotaLimits(namespace="n", name="q", uid="u", resource_version=version),
     lambda cache: cache.quotas.of("n").get("u")),
])
def test_after_a_restore_of_etcd_earlier_versions_and_deleted_objects_are_taken(kind, make, find):
    cache = SmallCache()
    sink = getattr(cache, kind)
    sink.upsert(make("90"))
    sink.reset()
    assert find(cache) is not None, "it is kept until all has been read anew"
    sink.upsert(make("50"))
    sink.upsert(make("40"))
    assert int(getattr(find(cache), "version", 0) or find(cache).resource_version) == 50
    sink.remove(make("60"))
    sink.reset()
    sink.upsert(make("30"))
    assert find(cache) is not None
