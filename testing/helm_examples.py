"""Values of the chart: those of its options, and what the documentation of HAMi shows."""

from __future__ import annotations

from typing import Any

from testing.hami_values import upstream_values
from testing.helm_chart import CA, ROOT, Helm

__all__ = ["CONFIG", "EVERYTHING", "EXAMPLES", "STRICT", "RenderedExamples", "by_kind_and_name"]

Object = dict[str, Any]
CONFIG = (ROOT / "manifests" / "base" / "device-config.yaml").read_text()
STRICT = CONFIG.replace("nvidia:\n", "nvidia:\n  strict: true\n", 1)
EVERYTHING: Object = {
    "dashboard": {"enabled": True},
    "scheduler": {"certManager": {"enabled": True}},
    "limiter": {"hami": True, "regionMount": True},
    "mig": True,
    "selinux": {"enabled": True},
    "device-config": {"content": STRICT},
    "prometheus": {"enabled": True},
}
NODE_CONFIG = '{"nodeconfig": [{"name": "n0", "operatingmode": "mig", "filterdevices": {"uuid": [], "index": [0]}}]}'
EXAMPLES: dict[str, Object] = {
    "defaults": {},
    "chart of hami": upstream_values("v2.10.0"),
    "earliest chart of hami": upstream_values("v2.4.0"),
    "registry": {
        "global": {"imageRegistry": "registry.example.com/mirror", "imagePullSecrets": ["pull"]}
    },
    "own images": {
        "scheduler": {
            "extender": {"image": {"registry": "r.example.com", "repository": "hami", "tag": "1"}},
            "kubeScheduler": {"image": {"digest": f"sha256:{'0' * 64}"}},
        }
    },
    "images as strings": {
        "devicePlugin": {"image": "r.example.com/plugin", "imagePullPolicy": "Always"}
    },
    "kube-scheduler": {
        "scheduler": {
            "kubeScheduler": {
                "image": {
                    "registry": "registry.k8s.io",
                    "repository": "kube-scheduler",
                    "tag": "v1.31.2",
                }
            }
        }
    },
    "names of resources": {
        "resourceName": "example.com/gpu",
        "resourceMem": "example.com/mem",
        "resourceCores": "example.com/cores",
        "dcuResourceName": "example.com/dcu",
        "resourcePriority": "example.com/turn",
    },
    "policies": {
        "scheduler": {
            "defaultSchedulerPolicy": {
                "nodeSchedulerPolicy": "spread",
                "gpuSchedulerPolicy": "topology-aware",
            }
        }
    },
    "sharing": {
        "devicePlugin": {
            "deviceSplitCount": 5,
            "deviceMemoryScaling": 1.5,
            "disablecorelimit": "true",
        }
    },
    "node configuration": {
        "devicePlugin": {"nodeConfiguration": {"config": NODE_CONFIG}, "migStrategy": "mixed"}
    },
    "device configuration": {
        "device-config": {"content": "nvidia: {resourceCountName: nvidia.com/gpu}"}
    },
    "runtime class": {"devicePlugin": {"runtimeClassName": "nvidia", "createRuntimeClass": True}},
    "gpu operator": {
        "devicePlugin": {
            "gpuOperatorToolkitReady": {"enabled": True},
            "nvidiaDriverRoot": "/run/nvidia/d",
            "deviceListStrategy": "cdi-cri",
            "passDeviceSpecsEnabled": True,
        }
    },
    "services": {
        "scheduler": {
            "service": {"type": "ClusterIP", "labels": {"a": "b"}, "annotations": {"c": "d"}}
        },
        "devicePlugin": {"service": {"type": "ClusterIP", "httpPort": 9394}},
    },
    "webhook": {
        "scheduler": {
            "admissionWebhook": {
                "whitelistNamespaces": ["default"],
                "failurePolicy": "Fail",
                "reinvocationPolicy": "IfNeeded",
                "objectSelector": {
                    "matchExpressions": [
                        {"key": "hami.io/enable", "operator": "In", "values": ["true"]}
                    ]
                },
            }
        }
    },
    "webhook elsewhere": {
        "certificates": {"mode": "secret", "caBundle": CA},
        "scheduler": {
            "admissionWebhook": {
                "customURL": {"enabled": True, "host": "10.0.0.1", "port": 31998},
                "manageNamespaceSelector": False,
            }
        },
    },
    "nodes": {
        "scheduler": {
            "nodeSelector": {"a": "b"},
            "nodeLabelSelector": {"gpu": "on"},
            "tolerations": [{"key": "a", "operator": "Exists"}],
        },
        "devicePlugin": {"nvidiaNodeSelector": {"pool": "gpu"}},
    },
    "everything": {
        **EVERYTHING,
        "dashboard": {"enabled": True, "grafana": True},
        "prometheus": {
            "enabled": True,
            "runbookUrl": "https://example.com/alerts.md",
            "labels": {"release": "kube-prometheus-stack"},
            "interval": "30s",
            "rulesInterval": "1m",
        },
        "legacyMetrics": True,
        "devicePlugin": {"mockCards": True},
    },
    "scheduler only": {
        "devicePlugin": {"enabled": False},
        "scheduler": {"leaderElect": False, "replicas": 3},
    },
    "preemption": {"scheduler": {"preemption": {"mode": "strict", "minRuntime": "10m"}}},
    "few vendors": {
        "devices": {"ascend": {"enabled": False}, "kunlun": {"enabled": False}},
        "strict": True,
    },
    "bare": {
        "policies": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "disruptionBudget": {"enabled": False},
    },
}
"""Among them what the documentation of HAMi shows: its values by name."""


def by_kind_and_name(items: list[Object]) -> dict[str, Object]:
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in items}


class RenderedExamples(dict[str, dict[str, Object]]):
    """The objects of each example by kind and name, rendered when they are first asked for."""

    def __init__(self, helm: Helm) -> None:
        super().__init__()
        self._helm = helm

    def __missing__(self, name: str) -> dict[str, Object]:
        self[name] = by_kind_and_name(self._helm.template(EXAMPLES[name]))
        return self[name]
