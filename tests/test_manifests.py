"""The manifests name the same resources as the catalog, and the same defaults."""

import re
from pathlib import Path

import pytest
import yaml

from hami.codec.device_config import chart_config
from hami.codec.keys import SCHEDULER_OWNED
from hami.vendors.catalog import vendors

BASE = Path(__file__).parent.parent / "manifests" / "base"
CATALOG = vendors(chart_config(), ascend=True, iluvatar=True)
RESOURCES = {resource for vendor in CATALOG for resource in vendor.resources}
# the node offers these as such, so kube-scheduler and the kubelet hold pods to them, as upstream's chart has it
NATIVE = {resource for vendor in CATALOG if vendor.key in ("MLU", "Mthreads") for resource in vendor.resources
          if resource != vendor.count}


@pytest.fixture
def expression():
    (webhook,) = yaml.safe_load((BASE / "webhook.yaml").read_text())["webhooks"]
    (condition,) = webhook["matchConditions"]
    return condition["expression"]


def test_the_webhook_is_asked_about_every_resource(expression):
    resources, annotations, labels = (set(re.findall(r"'([^']+)'", listed))
                                      for listed in re.findall(r" in \[(.*?)\]", expression, re.DOTALL))
    assert resources == RESOURCES
    assert annotations == labels == SCHEDULER_OWNED


def test_kube_scheduler_asks_us_about_every_resource_that_is_not_the_nodes_own():
    config = yaml.safe_load((BASE / "scheduler-config.yaml").read_text())
    (extender,) = config["extenders"]
    assert {entry["name"] for entry in extender["managedResources"]} == RESOURCES - NATIVE
    assert all(entry["ignoredByScheduler"] for entry in extender["managedResources"])
