"""What a node and its pods say about the health of their devices."""

import json

ANNOTATION, CONDITION = "hami.io/device-health", "HamiGpuHealthy"


def health_of(pod):
    """Returns the health of a pod's devices, as its status has it."""
    found = []
    for status in pod["status"].get("containerStatuses", ()):
        for resource in status.get("allocatedResourcesStatus", ()):
            found += [each.get("health", "") for each in resource["resources"]]
    return found


def condition(node):
    """Returns status and message of the node's condition; empty if it has none."""
    for each in node["status"]["conditions"]:
        if each["type"] == CONDITION:
            return each["status"], each["message"]
    return "", ""


def told(node):
    """Returns the unhealthy devices of a node."""
    text = (node["metadata"].get("annotations") or {}).get(ANNOTATION, "{}")
    return json.loads(text)
