"""``explain`` for a user who may not list nodes: asks the API group ``inspect.hami.io`` of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from hami.errors import ClusterError, HamiError, NotFound
from hami.inspect.explain import BoundReport, WaitingReport
from hami.inspect.tables import API_VERSION

if TYPE_CHECKING:
    from hami.kube.pages import Requester

_REPORT: msgspec.json.Decoder[WaitingReport | BoundReport] = msgspec.json.Decoder(
    WaitingReport | BoundReport
)


def remote_explanation(
    request: Requester, namespace: str, name: str, lacking: HamiError
) -> WaitingReport | BoundReport:
    """Returns the report on a pod from the cluster. *lacking*: the right without which it cannot be made here.

    Raises: HamiError.
    """
    path = (
        f"/apis/{API_VERSION}/namespaces/{quote(namespace, safe='')}"
        f"/pods/{quote(name, safe='')}/explanation"
    )
    try:
        body = request("GET", path)
    except NotFound as error:
        if f'pods "{name}" not found' in str(error):
            raise HamiError(f'pods "{name}" not found in namespace {namespace}') from error
        raise HamiError(
            f"{lacking}; or ask an administrator to install the API group inspect.hami.io, which explains pods to "
            "users of one namespace"
        ) from error
    except ClusterError as error:
        if error.status == 403:
            raise HamiError(
                f"{lacking}; and the API group inspect.hami.io says: {error}"
            ) from error
        raise HamiError(
            f"the API group inspect.hami.io does not explain the pod: {error}"
        ) from error
    try:
        return _REPORT.decode(body)
    except msgspec.DecodeError as error:
        raise HamiError(
            f"the API group inspect.hami.io is of another version: its answer cannot be read ({error})"
        ) from error
