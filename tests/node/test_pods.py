"""The pods of a node, as a watch reports them."""

import queue
import threading
import time

import pytest

from hami.node.pods import NodePods
from testing.pod_server import Server

TIMEOUT_S = 20.0


def wire(name, version, **spec):
    """A pod as the API server writes it."""
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
        },
        "spec": {
            "nodeName": "n1",
            "containers": [
                {"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}]}
            ],
        }
        | spec,
    }


@pytest.fixture
def watching():
    """Starts NodePods of a server in another thread, until the test ends."""
    started = []

    def start(server):
        node_pods = NodePods(server, "n1")
        thread = threading.Thread(target=node_pods.task.run, daemon=True)
        thread.start()
        started.append((node_pods, thread))
        return node_pods

    yield start
    for node_pods, thread in started:
        node_pods.task.stop()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def names(node_pods):
    pods = node_pods.pods()
    return None if pods is None else sorted(pod.ref.name for pod in pods)


def wait_for(node_pods, *expected):
    deadline = time.monotonic() + TIMEOUT_S
    while names(node_pods) != list(expected):
        assert time.monotonic() < deadline, names(node_pods)


def test_the_pods_of_the_node_are_listed_then_watched(watching):
    server = Server(([wire("a", 5)], 7))
    node_pods = watching(server)
    wait_for(node_pods, "a")
    assert server.requests[0][0] == "/api/v1/pods"
    assert server.requests[0][1]["fieldSelector"] == "spec.nodeName=n1"
    server.report("ADDED", wire("b", 8))
    wait_for(node_pods, "a", "b")
    server.report("DELETED", wire("a", 9))
    wait_for(node_pods, "b")


def test_a_pod_is_known_by_its_uid_once_the_list_has_it(watching):
    server = Server(([wire("a", 5)], 7))
    node_pods = watching(server)
    assert node_pods.pod("uid-a").ref.name == "a"
    wait_for(node_pods, "a")
    assert node_pods.pod("uid-b") is None


def test_each_state_of_a_pod_is_passed_on():
    passed = queue.SimpleQueue()
    server = Server(([wire("a", 5)], 7))
    node_pods = NodePods(server, "n1", lambda pod: passed.put(pod.resource_version))
    thread = threading.Thread(target=node_pods.task.run, daemon=True)
    thread.start()
    assert passed.get(timeout=TIMEOUT_S) == "5"
    server.report("MODIFIED", wire("a", 8))
    assert passed.get(timeout=TIMEOUT_S) == "8"
    node_pods.task.stop()
    thread.join(TIMEOUT_S)


def test_the_literal_variables_of_containers_are_known(watching):
    node_pods = watching(Server(([wire("a", 5)], 7)))
    wait_for(node_pods, "a")
    assert node_pods.environment("uid-a", "c") == {"A": "1"}
    assert node_pods.environment("uid-a", "other") == {}
    assert node_pods.environment("uid-b", "c") is None


def test_a_pod_that_cannot_be_read_does_not_hide_the_others(watching):
    server = Server(([wire("a", 5), wire("bad", 6, containers=1)], 7))
    node_pods = watching(server)
    wait_for(node_pods, "a")


def test_pods_that_a_list_lacks_are_forgotten(watching):
    server = Server(([wire("a", 5)], 7), ([wire("b", 8)], 9))
    node_pods = watching(server)
    wait_for(node_pods, "a")
    server.report("ERROR", {"code": 410, "message": "too old"})
    wait_for(node_pods, "b")


def test_nothing_is_known_before_the_first_list_is_complete():
    found = []

    class Observed(Server):
        """One that is looked at between the pages."""

        def request(self, method, path, *, query=None):
            found.append(names(node_pods))
            if not self.pages:
                node_pods.task.stop()
                return b'{"metadata": {}, "items": []}'
            return super().request(method, path, query=query)

    node_pods = NodePods(Observed(([wire("a", 9)], 10, "more"), ([wire("b", 8)], 10, "more")), "n1")
    node_pods.task.run()
    assert found == [None] * 3
