"""A node with cards, claims of pods on it, and its slices; fakes only at the API server."""

import json
import math
from dataclasses import dataclass

from hami.codec.claims import parse_claim
from hami.codec.pods import parse_node_pod
from hami.codec.slices import device_name, pool_name
from hami.devices.inventory import DeviceInventory
from hami.dra.prepare import ClaimPreparer, PreparedRequests
from hami.errors import Conflict, NotFound
from hami.model import Node
from hami.node.container_specs import CLAIM, ContainerSpecs
from hami.node.dynamic_mig import DynamicMig
from hami.node.grant_builder import GrantBuilder
from hami.node.host import Host
from hami.node.memory_wall import MemoryWall
from hami.runtime.tasks import PeriodicTask
from testing.builders import container, pod
from testing.cards import cards, config
from testing.fake_cluster import FakeCluster

NODE = "n1"
A, B = "GPU-AAAA", "GPU-bbbb"


class FakeResources:
    """The claims and slices of a cluster, with resource versions as the API server has them."""

    def __init__(self):
        self.claims = {}  # documents by namespace and name
        self.documents = {}  # slices by name
        self.writes = []
        self.reads = 0
        self.error = None
        self.alter = lambda document: None  # changes a slice before it is stored
        self._version = 0

    def claim(self, namespace, name):
        self.reads += 1
        if self.error:
            raise self.error
        document = self.claims.get((namespace, name))
        return None if document is None else parse_claim(json.dumps(document).encode())

    def slices(self):
        if self.error:
            raise self.error
        return json.loads(json.dumps(list(self.documents.values())))

    def watch(self, sink):
        """A watch that reports nothing."""
        return PeriodicTask("watch", lambda: None, math.inf)

    def write_slice(self, document):
        document = json.loads(json.dumps(document))
        name = document["metadata"]["name"]
        self.writes.append(name)
        found = self.documents.get(name, {"metadata": {}})["metadata"].get("resourceVersion")
        if document["metadata"].get("resourceVersion") != found:
            raise Conflict("another version", 409)
        self._version += 1
        document["metadata"]["resourceVersion"] = str(self._version)
        self.alter(document)
        self.documents[name] = document
        return json.loads(json.dumps(document))

    def delete_slice(self, name):
        self.writes.append(name)
        if self.documents.pop(name, None) is None:
            raise NotFound(name, 404)


@dataclass
class Watch:
    """The pods of the node, all of which are known."""

    cluster: FakeCluster

    def pod(self, uid):
        return next((one for one in self.cluster.pods.values() if one.ref.uid == uid), None)

    def environment(self, uid, name):
        return self.cluster.environments.get((uid, name), {})

    def claims(self, uid):
        found = self.cluster.specifications.get(uid, {})
        return parse_node_pod(json.dumps({"spec": {}} | found).encode()).claims


class ClaimStage:
    """A node whose claims are prepared. *folder*: of its files. *instances*: its MIG driver, in operating mode ``mig``.
    *given*: settings."""

    def __init__(self, folder, *, instances=None, **given):
        self.folder = folder
        self.instances = instances
        (folder / "vgpu").mkdir(parents=True)
        for name in ("libvgpu.so", "ld.so.preload"):
            (folder / "vgpu" / name).touch()
        self.config = config(
            node=NODE, hook_path=str(folder), kubelet_socket=str(folder / "kubelet.sock"), **given
        )
        self.cluster = FakeCluster(nodes=[Node(name=NODE, uid="uid-of-node")])
        self.resources = FakeResources()
        self.inventory = DeviceInventory()
        self.inventory.update(cards(A, B))
        self.now = 0.0
        self.restart()

    def restart(self):
        """Another process with the same files."""
        watch = Watch(self.cluster)
        self.host = Host(self.config, version="")
        self.specs = ContainerSpecs(self.folder / "cdi", kind=CLAIM)
        self.mig = None
        if self.instances is not None:
            self.mig = DynamicMig(
                lambda: self.cluster.pods_on(NODE),
                self.instances,
                self.inventory.cards,
                claimed=PreparedRequests(self.specs).instances,
                exclusive=self.specs.exclusive,
            )
        grants = GrantBuilder(
            self.config, self.cluster, self.inventory, self.host, self.mig, node_pods=watch
        )
        self.claims = ClaimPreparer(
            self.config,
            self.cluster,
            self.resources,
            grants,
            self.specs,
            MemoryWall(self.config, self.folder),
            node_pods=watch,
            clock=lambda: self.now,
        )

    def put(
        self,
        name="p",
        *results,
        uid=None,
        containers=("main",),
        pods=None,
        setting=None,
        uses=None,
        **fields,
    ):
        """Creates a pod, and a claim with these results that is reserved for it; returns the claim's reference. *uses*:
        the requests of the claim that each container uses; by default, that of its name."""
        made = self.cluster.put_pod(
            pod(*(container(name=one) for one in containers), name=name, node_name=NODE, **fields)
        )
        uid = uid or f"claim-{name}"
        if uses is not None:
            self.specify(
                name,
                {
                    one: {
                        "resources": {
                            "claims": [
                                {"name": "gpu", "request": request} for request in uses.get(one, ())
                            ]
                        }
                    }
                    for one in containers
                },
            )
        devices = {
            "results": list(results or [result()]),
            "config": [] if setting is None else [setting],
        }
        self.resources.claims["default", f"{name}-hami"] = {
            "metadata": {"namespace": "default", "name": f"{name}-hami", "uid": uid},
            "status": {
                "allocation": {"devices": devices},
                "reservedFor": [
                    {"resource": "pods", "name": name, "uid": one}
                    for one in (pods or [made.ref.uid])
                ],
            },
        }
        return "default", f"{name}-hami", uid

    def specify(self, name, containers, claims=None):
        """Sets what the API server has of a pod: its *containers* by name, and the *claims* that it names, by default
        its own one as gpu. The names of claims are in the status of the pod."""
        claims = {"gpu": f"{name}-hami"} if claims is None else claims
        self.cluster.specifications[f"uid-{name}"] = {
            "metadata": {"uid": f"uid-{name}"},
            "spec": {
                "containers": [{"name": one, **fields} for one, fields in containers.items()],
                "resourceClaims": [
                    {"name": one, "resourceClaimTemplateName": "t"} for one in claims
                ],
            },
            "status": {
                "resourceClaimStatuses": [
                    {"name": one, "resourceClaimName": made} for one, made in claims.items()
                ]
            },
        }

    def delete(self, name):
        """Deletes a pod and its claim."""
        self.cluster.delete_pod("default", name)
        self.resources.claims.pop(("default", f"{name}-hami"), None)

    def env(self, uid, request="main"):
        """The variables that a container of a claim gets."""
        (device,) = self.specs.read(f"{uid}_{request}")["devices"]
        return dict(text.split("=", 1) for text in device["containerEdits"]["env"])

    def limits(self, uid, name="main"):
        """The lines of the limits file of a container."""
        return (
            (self.folder / "vgpu" / "containers" / f"{uid}_{name}" / "limits")
            .read_text()
            .splitlines()
        )


def result(request="main", uuid=A, memory=1000, cores=0, share=10, **fields):
    """A device in an allocation."""
    return {
        "request": request,
        "driver": "gpu.hami.io",
        "pool": pool_name(NODE),
        "device": device_name(uuid),
        "shareID": f"share-{request.partition('/')[0]}",
        "consumedCapacity": {"memory": f"{memory}Mi", "cores": str(cores), "share": str(share)},
    } | fields
