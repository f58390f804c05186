"""Pods that request GPUs, as JSON."""

SIZES = (46068, 81920)
TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
UUID, NOUSE_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
POLICY, NODES = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"
MIG = {"nvidia.com/vgpu-mode": "mig"}
OF = 'device.attributes["gpu.hami.io"]'


def limits(gpu=None, **amounts):
    given = ({} if gpu is None else {"gpu": gpu}) | amounts
    return {f"nvidia.com/{name.replace('_', '-')}": str(amount) for name, amount in given.items()}


def asking(name="main", gpu=None, *, fields=(), **amounts):
    """A container with these limits."""
    return {"name": name, "resources": {"limits": limits(gpu, **amounts)}, **dict(fields)}


def init(name="init", gpu=None, **amounts):
    return asking(name, gpu, **amounts)


def sidecar(name="sidecar", gpu=None, **amounts):
    return asking(name, gpu, fields={"restartPolicy": "Always"}, **amounts)


def pod(*containers, inits=(), spec=(), **annotations):
    return {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {
            "containers": list(containers),
            **({"initContainers": list(inits)} if inits else {}),
            **dict(spec),
        },
    }


def annotated(annotations, *containers):
    return pod(*containers or [asking(gpu=1, gpumem=1000)], **annotations)
