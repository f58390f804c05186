"""The watches of a whole cluster."""

import pytest

from hami.errors import ClusterError
from hami.kube.watches import Watches


class OneList:
    """An API that ends the watch at the first list."""

    def __init__(self):
        self.asked = []
        self.watches = None

    def request(self, method, path, *, query=None):
        self.asked.append((method, path, query))
        self.watches.stop()
        raise ClusterError("unable to parse requirement", 400)


@pytest.mark.parametrize("selector, query", [
    ("gpu=on,zone notin (b)", {"labelSelector": "gpu=on,zone notin (b)"}), ("", {}),
])
def test_the_api_server_selects_the_nodes(selector, query):
    api = OneList()
    api.watches = Watches(api, nodes=None, pods=None, quotas=None, node_selector=selector)
    api.watches.loops()["nodes"]()
    assert api.asked == [("GET", "/api/v1/nodes", {"limit": "500"} | query)]
