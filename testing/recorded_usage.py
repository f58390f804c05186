"""Usage that a real scheduler records: the rights for it, and waiting for records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from hami.codec.usage_objects import CURRENT, parse_current
from hami.codec.usage_sums import UsageSums
from testing.cluster import MANIFESTS
from testing.eventually import eventually
from testing.kube import ApiError, Kube
from testing.pods import pod
from testing.sandbox import Sandbox
from testing.yaml_text import read_documents

__all__ = ["FLAGS", "NAMESPACE", "recorded", "rights_to_record", "tick"]

NAMESPACE = "hami-usage"
FLAGS = {"usage_namespace": NAMESPACE, "usage_interval": "3s"}
RIGHTS = (
    MANIFESTS.parent / "usage" / "rbac.yaml",
    MANIFESTS.parent / "components" / "usage" / "rbac.yaml",
)


@contextlib.contextmanager
def rights_to_record(kube: Kube) -> Iterator[None]:
    """Makes the namespace of the records, and the rights, for a while."""
    for file in RIGHTS:
        for item in read_documents(file.read_text()):
            kube.apply(item)
    yield
    kube.delete("Namespace", NAMESPACE)

    def is_gone() -> bool:
        return NAMESPACE not in [each["metadata"]["name"] for each in kube.list("Namespace")]

    # the next module makes it again
    eventually(is_gone, "the namespace of the records is gone", interval=1)


def recorded(sandbox: Sandbox, after: int) -> UsageSums:
    """Returns the sums, once they are settled later than *after* (Unix seconds).

    All is settled as far as the watch of pods has come, and an API server says once a minute how far that is if nothing
    changes: so something does.
    """

    def settled() -> UsageSums | None:
        tick(sandbox)
        try:
            data = sandbox.kube.get("ConfigMap", CURRENT, NAMESPACE)["data"]
        except ApiError:
            return None
        sums = parse_current(data)
        return sums if sums.settled > after else None

    return eventually(settled, "a record that is settled later", interval=1)


def tick(sandbox: Sandbox) -> None:
    """Changes a pod that holds nothing, which no scheduler places."""
    name = "tick"
    labels = {"at": str(time.monotonic_ns())}
    try:
        sandbox.kube.merge_patch("Pod", name, {"metadata": {"labels": labels}}, sandbox.namespace)
    except ApiError:
        sandbox.create(pod(name, scheduler="nobody"))
