"""The last resize of a bound pod, of which its annotations tell.

The dashboard keeps no annotations of bound pods: there are too many. So the pod that is viewed is read.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hami.codec.pods import parse_pod
from hami.dashboard.caches import Poller, PollLimits
from hami.inspect.resize_report import ResizeReport, resize_report
from hami.inspect.tables import printable
from hami.kube.api import Api
from hami.model import PodRef

SIZE_LIMITS = PollLimits(interval=5.0, shown=60.0, viewed=90.0, values=256)


class PodSize(msgspec.Struct, rename="camel", frozen=True):
    """The last resize of a pod, beside the sizes that it holds and is to have."""

    resize: ResizeReport | None = None


def read_size(api: Api, ref: PodRef) -> PodSize:
    """Returns the last resize of the pod *ref*. Raises: ClusterError, MalformedInput."""
    pod = parse_pod(api.request("GET", f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"))
    if pod.ref.uid != ref.uid:
        return PodSize()
    report = resize_report(pod.annotations)
    return PodSize(
        report
        and msgspec.structs.replace(
            report,
            request=printable(report.request),
            message=printable(report.message),
            problem=printable(report.problem),
        )
    )


def size_poller(
    read: Callable[[PodRef], PodSize], *, clock: Callable[[], float]
) -> Poller[PodRef, PodSize]:
    """Returns the sizes of each bound pod that is viewed, as *read* returns them."""
    return Poller("sizes of pods", read, SIZE_LIMITS, clock=clock)
