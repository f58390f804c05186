"""The Pods and requests that pages for users show are admitted, and request what they say."""

import re
from pathlib import Path

import pytest

from hami.codec.documents import parse_own_yaml
from hami.codec.pods import convert_pod
from hami.inspect.manifests import read_manifests
from hami.scheduling.pod_request import make_pod_request
from testing.cases import cases
from testing.vendor_chart import CHART
from tests.test_examples import STORE, admitted

pytestmark = pytest.mark.files
DOCS = Path(__file__).parent.parent / "docs"
PODS = {
    "usage.md": re.findall(
        r"^```yaml\n(apiVersion: v1\nkind: Pod\n.*?)^```$",
        (DOCS / "usage.md").read_text(),
        re.MULTILINE | re.DOTALL,
    ),
    "quickstart.md": re.findall(
        r"<<YAML\n(.*?)^YAML$", (DOCS / "quickstart.md").read_text(), re.MULTILINE | re.DOTALL
    ),
}
(LIMITS,) = re.findall(
    r"^## Limits.*?^```yaml\n(.*?)^```$",
    (DOCS / "vendors.md").read_text(),
    re.MULTILINE | re.DOTALL,
)
ROWS = parse_own_yaml(LIMITS)


def requests_of(pod):
    (container,) = make_pod_request(convert_pod(admitted(pod)), STORE.vendors, "spread").containers
    return container.requests


@cases(
    "page, asked",
    ("usage.md", [(1, 4000, 30), (1, 8000, 30)]),
    ("quickstart.md", [(1, 20000, 0), (1, 40000, 0)]),
)
def test_pods_of_a_page_request_what_it_says(page, asked):
    sources = [source for text in PODS[page] for source in read_manifests(text, page)[0]]
    found = [
        (one.count, one.memory_mib, one.cores)
        for source in sources
        for one in requests_of(source.pod)
    ]
    assert found == asked


@pytest.mark.parametrize("key", ROWS)
def test_the_limits_of_a_vendor_are_requests_of_its_devices(key):
    container = {
        "name": "main",
        "image": "busybox",
        "resources": {"limits": {name: str(amount) for name, amount in ROWS[key].items()}},
    }
    (request,) = requests_of({"metadata": {}, "spec": {"containers": [container]}})
    assert request.vendor == key
    comment = re.search(rf"^{key}:.*# (\d+) GiB", LIMITS, re.MULTILINE)
    assert comment is None or request.memory_mib == int(comment[1]) * 1024


def test_each_vendor_has_a_row():
    """Of chips with the same resources up to their name, one is enough."""
    families = {re.sub(r"(\D)\d.*", r"\1", vendor.key).replace("MR-V", "BI-V") for vendor in CHART}
    assert {re.sub(r"(\D)\d.*", r"\1", key) for key in ROWS} == families
