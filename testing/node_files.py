"""Configuration files of a real node: kubelet, containerd, CNI, and its client certificate."""

from __future__ import annotations

import base64
import datetime
import json
import warnings
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hami.codec.documents import parse_own_yaml
from testing.cluster import LocalCluster

__all__ = ["CONTAINERD_1", "CONTAINERD_2", "TUNABLES", "control_group", "write_node_files"]

Object = dict[str, Any]
TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""Kernel settings that the kubelet insists on. It finds files that say so; the machine's own settings stay."""
PODS = "10.244.0.0/16"
"""Addresses of pods, in a network that only they and containerd see."""

# The native snapshotter copies instead of mounting, so it works on any file system. Without CAP_SYS_RESOURCE, which the
# machine may lack, out-of-memory scores cannot be lowered.
COMMON = """root = "{folder}/containerd"
state = "/run/containerd"

[grpc]
address = "{folder}/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
"""
CONTAINERD_1 = (
    "version = 2\n"
    + COMMON
    + """
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{sandbox_image}"
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{folder}/cni"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""
)
"""Of Debian's containerd 1.6, which knows no CDI."""
CONTAINERD_2 = (
    "version = 3\n"
    + COMMON
    + """
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{sandbox_image}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{folder}/cni"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
BinaryName = "{folder}/nvidia-container-runtime"
SystemdCgroup = false
"""
)
"""Of containerd 2, which reads CDI specifications in /etc/cdi and /var/run/cdi by default. The program of the runtime
``nvidia`` comes with testing/gpu_operator.py."""


def write_node_files(
    cluster: LocalCluster,
    folder: Path,
    name: str,
    *,
    containerd: str,
    sandbox_image: str,
    plugins: Path,
) -> None:
    """Writes all files that the node *name* needs to join *cluster* into its *folder*.

    *containerd*: a template. *plugins*: the directory of the CNI plugins.
    """
    for part in ("cni", "volume-plugins", "opt"):
        (folder / part).mkdir()
    for setting, value in TUNABLES.items():
        path = folder / "tunables" / setting
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    (folder / "containerd.toml").write_text(
        containerd.format(folder=folder, plugins=plugins, sandbox_image=sandbox_image)
    )
    (folder / "cni" / "10-e2e.conflist").write_text(json.dumps(cni_config(folder)))
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet_config(cluster, folder, name)))
    kubeconfig = folder / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(yaml.safe_dump(node_kubeconfig(cluster, name)))


def control_group(cluster: LocalCluster, name: str) -> tuple[str, str]:
    """Returns the control group of all processes of the node *name*, and first that of all nodes of *cluster*. A
    kubelet ends what it does not know in its own."""
    return cluster.folder.name, name


def cni_config(folder: Path) -> Object:
    """Returns a bridge in containerd's own network: pods reach each other, and nothing else."""
    addresses = {
        "type": "host-local",
        "dataDir": str(folder / "addresses"),
        "ranges": [[{"subnet": PODS}]],
    }
    return {
        "cniVersion": "0.4.0",
        "name": "e2e",
        "plugins": [{"type": "bridge", "bridge": "pods", "ipam": addresses}],
    }


def kubelet_config(cluster: LocalCluster, folder: Path, name: str) -> Object:
    """Returns a KubeletConfiguration for a kubelet outside of systemd, without changes to the machine."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        # not needed: logs are read as files; and it would use a port
        "enableServer": False,
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True,
        "cgroupRoot": "/" + "/".join(control_group(cluster, name)),
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "volumePluginDir": str(folder / "volume-plugins"),
        # tests wait for changes of the node's status; without a change every watch of nodes would be told each second
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "1m",
        # ignore a full disk of the machine
        "evictionHard": dict.fromkeys(
            (
                "memory.available",
                "nodefs.available",
                "imagefs.available",
                "nodefs.inodesFree",
                "imagefs.inodesFree",
            ),
            "0%",
        ),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    }


def node_kubeconfig(cluster: LocalCluster, name: str) -> Object:
    """Returns the cluster's kubeconfig with a client certificate of ``system:node:<name>``."""
    pki = next((cluster.folder / "kwok").glob("clusters/*/pki"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the serial number of kwokctl's certificate is 0
        authority = x509.load_pem_x509_certificate((pki / "ca.crt").read_bytes())
    authority_key = serialization.load_pem_private_key((pki / "ca.key").read_bytes(), None)
    assert isinstance(authority_key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{name}"),
        ]
    )
    certificate = (
        x509.CertificateBuilder(
            subject_name=subject,
            issuer_name=authority.subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(hours=1),
            not_valid_after=now + datetime.timedelta(days=7),
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    user = {
        "client-certificate-data": encoded(certificate.public_bytes(serialization.Encoding.PEM)),
        "client-key-data": encoded(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        ),
    }
    config: Object = parse_own_yaml(cluster.kubeconfig.read_text())
    return config | {"users": [{"name": item["name"], "user": user} for item in config["users"]]}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
