"""A device plugin for the cards of Acme, a vendor that does not exist: what an agent owes the kubelet and HAMi.

It registers two cards with the kubelet and in an annotation of its node, and answers Allocate with what HAMi's
scheduler chose. `DEVICES` and `environment` are what a real vendor replaces. tests/example_vendor is the other half:
the same vendor, as the scheduler knows it. Runs with the package `hami[node]`, as a DaemonSet on the nodes with cards.
"""

import argparse
import json
import logging
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from kubernetes import client, config
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random

from hami.plugin import api_pb2 as api

RESOURCE = "acme.example/card"
REGISTER = "hami.io/node-acme-register"
HANDSHAKE = "hami.io/node-handshake-acme"
TO_ALLOCATE = "hami.io/acme-devices-to-allocate"
PHASE, LOCK = "hami.io/bind-phase", "hami.io/mutex.lock"
SLOTS = 4  # containers on one card
DEVICES = [
    {"id": f"ACME-{index}", "index": index, "count": SLOTS, "devmem": 16384, "devcore": 100}
    | {"type": "Acme-1", "numa": 0, "health": True}
    for index in range(2)
]
log = logging.getLogger("acme")


def environment(shares):
    """Returns the variables of a container with *shares*: (card, MiB) pairs."""
    memory = {f"ACME_MEMORY_LIMIT_{place}": f"{mib}m" for place, (_, mib) in enumerate(shares)}
    return {"ACME_VISIBLE_CARDS": ",".join(card for card, _ in shares)} | memory


def next_container(text):
    """Returns the shares of the first container in *text* that has some, and *text* without them.

    A container is `UUID,vendor,MiB,cores:` for each card; `;` closes it.
    """
    containers = text.split(";")
    for place, shares in enumerate(containers):
        if shares:
            containers[place] = ""
            cards = [share.split(",") for share in shares.split(":") if share]
            return [(card, int(mib)) for card, _, mib, _ in cards], ";".join(containers)
    raise LookupError("no container of this pod waits for a card")


def is_conflict(error):
    """Reports whether somebody else has changed the object meanwhile."""
    return isinstance(error, client.ApiException) and error.status == 409


class Cluster:
    """This node in the API server."""

    def __init__(self, node):
        self.api, self.node = client.CoreV1Api(), node

    def register(self):
        """Writes the cards and the answer to HAMi's scheduler, which asks for a sign of life."""
        notes = {REGISTER: json.dumps(DEVICES), HANDSHAKE: "Reported now"}
        self.api.patch_node(self.node, {"metadata": {"annotations": notes}})

    @retry(
        retry=retry_if_exception(is_conflict),
        stop=stop_after_attempt(5),
        wait=wait_random(0, 0.1),
        reraise=True,
    )
    def take(self, count):
        """Returns the shares of the next container of the waiting pod, which are *count* cards, and takes them."""
        pod = self.waiting_pod()
        shares, remaining = next_container(pod.metadata.annotations[TO_ALLOCATE])
        if len(shares) != count:
            raise LookupError(f"{pod.metadata.name} waits for {len(shares)} cards")
        self.allocated(pod, remaining)
        return shares

    def waiting_pod(self):
        """Returns the pod that has the lock of this node: the only one that the kubelet can ask for."""
        node = self.api.read_node(self.node)
        _, namespace, name = node.metadata.annotations[LOCK].split(",")
        return self.api.read_namespaced_pod(name, namespace)

    def allocated(self, pod, remaining):
        """Tells the scheduler that a container has its cards; after the last one, the lock is released."""
        notes = {TO_ALLOCATE: remaining}
        if not remaining.strip(";"):
            notes[PHASE] = "success"
        version = {"resourceVersion": pod.metadata.resource_version}  # nobody has changed it since
        body = {"metadata": {"annotations": notes} | version}
        self.api.patch_namespaced_pod(pod.metadata.name, pod.metadata.namespace, body)
        if PHASE in notes:
            self.api.patch_node(self.node, {"metadata": {"annotations": {LOCK: None}}})


class DevicePlugin:
    """The calls of the kubelet's device plugin API, v1beta1."""

    def __init__(self, cluster, stopped):
        self.cluster, self.stopped = cluster, stopped

    def GetDevicePluginOptions(self, request, context):
        return api.DevicePluginOptions()

    def ListAndWatch(self, request, context):
        """Sends an id for each slot; a real agent sends them again when the health of a card changes."""
        ids = [f"{card['id']}-{slot}" for card in DEVICES for slot in range(SLOTS)]
        yield api.ListAndWatchResponse(devices=[api.Device(ID=id, health="Healthy") for id in ids])
        self.stopped.wait()

    def Allocate(self, request, context):
        """Answers with the cards that the scheduler chose; the ids of the kubelet only count them."""
        answers = []
        for container in request.container_requests:
            shares = self.cluster.take(len(container.devices_ids))
            answers.append(api.ContainerAllocateResponse(envs=environment(shares)))
        return api.AllocateResponse(container_responses=answers)


def serve(plugin, path):
    """Returns a server of *plugin* on the socket *path*."""
    path.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(8))
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    calls = {
        name: make(
            getattr(plugin, name), message.FromString, lambda answer: answer.SerializeToString()
        )
        for name, make, message in (
            ("GetDevicePluginOptions", unary, api.Empty),
            ("ListAndWatch", stream, api.Empty),
            ("Allocate", unary, api.AllocateRequest),
        )
    }
    handler = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", calls)
    server.add_generic_rpc_handlers([handler])
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


def register_with_kubelet(folder, endpoint):
    """Tells the kubelet which resource the socket *endpoint* in *folder* offers."""
    request = api.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=RESOURCE)
    with grpc.insecure_channel(f"unix:{folder}/kubelet.sock") as channel:
        call = channel.unary_unary(
            "/v1beta1.Registration/Register", lambda m: m.SerializeToString(), api.Empty.FromString
        )
        call(request, timeout=5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--node-name", required=True, help="of the node with the cards")
    parser.add_argument("--plugins", type=Path, default="/var/lib/kubelet/device-plugins")
    flags = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    config.load_config()  # of the pod's account, or KUBECONFIG
    stopped, socket, server = threading.Event(), flags.plugins / "acme.sock", None
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    plugin = DevicePlugin(Cluster(flags.node_name), stopped)
    while not stopped.is_set():
        try:
            plugin.cluster.register()
            # at first, and after each start of the kubelet, which removes all sockets
            if server is None or not socket.exists():
                if server is not None:
                    server.stop(None)
                server = serve(plugin, socket)
                register_with_kubelet(flags.plugins, socket.name)
                log.info("registered with the kubelet")
        except (client.ApiException, grpc.RpcError, OSError) as error:
            socket.unlink(missing_ok=True)
            log.warning("trying again: %s", error)
        stopped.wait(5)
    if server is not None:
        server.stop(None)


if __name__ == "__main__":
    main()
