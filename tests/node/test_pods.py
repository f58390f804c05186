"""What a watch tells of a node's pods, and when that is known to be all."""

import json
import queue
import threading

import pytest
from pytest import param

from hami.node.pods import NodePods

PATIENCE = 20.0


def wire(name, version, **spec):
    """A pod as the API server writes it."""
    return {"metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)},
            "spec": {"nodeName": "n1", "containers": [
                {"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}]}]} | spec}


class Server:
    """An API server with one watch. ``pages``: what lists answer, one after the other; ``asked``: their queries."""

    def __init__(self, *pages):
        self.pages = list(pages)
        self.asked = []
        self.events = queue.SimpleQueue()

    def request(self, method, path, *, query=None):
        self.asked.append((path, query))
        items, version, *more = self.pages.pop(0)
        return json.dumps({"metadata": {"resourceVersion": str(version), "continue": more[0] if more else ""},
                           "items": items}).encode()

    def stream(self, path, query, *, read_timeout):
        return Watch(self.events)

    def tell(self, kind, pod):
        self.events.put(json.dumps({"type": kind, "object": pod}).encode())

    def expire(self):
        """The watch ends: only a list can help."""
        self.tell("ERROR", {"code": 410, "message": "too old"})


class Watch:
    """The lines that are told."""

    def __init__(self, events):
        self._events = events

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def __iter__(self):
        return iter(self._events.get, None)

    def close(self):
        self._events.put(None)


@pytest.fixture
def watching():
    """NodePods of a server, that are told of in another thread until the test ends."""
    started = []

    def start(server):
        node_pods = NodePods(server, "n1")
        thread = threading.Thread(target=node_pods.run, daemon=True)
        thread.start()
        started.append((node_pods, thread))
        return node_pods
    yield start
    for node_pods, thread in started:
        node_pods.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def names(view):
    return sorted(pod.ref.name for pod in view.pods)


def test_the_pods_of_the_node_are_listed_then_watched(watching):
    server = Server(([wire("a", 5)], 7))
    node_pods = watching(server)
    view = node_pods.holding("default", "a", PATIENCE)
    assert (names(view), view.version) == (["a"], 5)
    assert view.environment("uid-a", "c") == {"A": "1"}
    assert view.environment("uid-a", "other") == {}
    assert server.asked[0][0] == "/api/v1/pods"
    assert server.asked[0][1]["fieldSelector"] == "spec.nodeName=n1"
    server.tell("ADDED", wire("b", 8))
    assert names(node_pods.holding("default", "b", PATIENCE)) == ["a", "b"]
    server.tell("DELETED", wire("a", 9))
    assert names(node_pods.after(view, "9", PATIENCE)) == ["b"]


def test_a_write_is_waited_for_and_all_before_it_is_known_then(watching):
    server = Server(([wire("a", 5)], 7))
    node_pods = watching(server)
    view = node_pods.holding("default", "a", PATIENCE)
    assert node_pods.after(view, "9", 0.0) is None
    server.tell("ADDED", wire("b", 8))
    server.tell("MODIFIED", wire("a", 9))
    assert names(node_pods.after(view, "9", PATIENCE)) == ["a", "b"]


@pytest.mark.parametrize("version", [
    param("5", id="nothing was changed"), param("4", id="the cluster was restored from a copy"),
    param("x", id="not a number"), param("", id="none"),
])
def test_a_version_that_is_not_newer_proves_nothing(watching, version):
    node_pods = watching(Server(([wire("a", 5)], 7)))
    view = node_pods.holding("default", "a", PATIENCE)
    assert node_pods.after(view, version, PATIENCE) is None


def test_nothing_is_told_of_a_pod_that_is_not_there(watching):
    node_pods = watching(Server(([wire("a", 5)], 7)))
    assert node_pods.holding("default", "a", PATIENCE) is not None
    assert node_pods.holding("default", "b", 0.0) is None
    assert names(node_pods.now()) == ["a"]


def test_a_pod_that_cannot_be_read_makes_the_view_void_until_it_can(watching):
    server = Server(([wire("a", 5)], 7))
    node_pods = watching(server)
    view = node_pods.holding("default", "a", PATIENCE)
    server.tell("ADDED", wire("b", 8, containers=1))
    server.tell("MODIFIED", wire("a", 9))
    server.tell("MODIFIED", wire("b", 10))
    assert node_pods.after(view, "8", PATIENCE).version == node_pods.now().version == 10


def test_a_list_counts_only_as_a_whole():
    """It is in no order: a pod may come first that was changed last."""
    asked = []

    class Slow(Server):
        """One that is looked at between the pages."""

        def request(self, method, path, *, query=None):
            asked.extend((node_pods.holding("default", "a", 0.0), node_pods.now()))
            if not self.pages:
                node_pods.stop()
                return b'{"metadata": {}, "items": []}'
            return super().request(method, path, query=query)

    slow = Slow(([wire("a", 9)], 10, "more"), ([wire("b", 8)], 10))
    node_pods = NodePods(slow, "n1")
    slow.tell("ADDED", wire("c", 11))
    slow.expire()
    slow.pages.append(([wire("b", 8), wire("c", 11)], 12, "more"))
    node_pods.run()
    assert [view and names(view) for view in asked] == [None] * 8
