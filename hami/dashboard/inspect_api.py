"""The API group ``inspect.hami.io`` behind the API server: for users with rights in one namespace.

The API server passes a user's request on. Who may get a pod gets the answer of ``hami explain``, in which pods of other
namespaces have no names. Who may list the pods of a namespace gets its part of the records of usage. Everything else is
discovery.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import flask
import msgspec
from werkzeug.exceptions import HTTPException

from hami.dashboard.access import Access, Scope
from hami.dashboard.errors import PageError
from hami.dashboard.explainer import nearest_nodes
from hami.dashboard.front_proxy import FrontProxy
from hami.dashboard.live import LiveCluster
from hami.dashboard.turns import Turns
from hami.dashboard.usage_records import UsageRecords
from hami.errors import HamiError
from hami.inspect.cluster import condition_event
from hami.inspect.explain import BoundReport, WaitingReport, explain_pod
from hami.inspect.tables import versioned
from hami.model import Pod, PodRef

log = logging.getLogger(__name__)

GROUP, VERSION = "inspect.hami.io", "v1alpha1"
KIND, USAGE_KIND = "PodExplanation", "UsageRecord"
RETRY_AFTER_S = 2

_GROUP_VERSION = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
_GROUP: dict[str, object] = {
    "name": GROUP,
    "versions": [_GROUP_VERSION],
    "preferredVersion": _GROUP_VERSION,
}
_RESOURCES: dict[str, object] = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": f"{GROUP}/{VERSION}",
    "resources": [
        {
            "name": "pods/explanation",
            "singularName": "",
            "namespaced": True,
            "kind": KIND,
            "verbs": ["get"],
        },
        {
            "name": "usagerecords",
            "singularName": "usagerecord",
            "namespaced": True,
            "kind": USAGE_KIND,
            "verbs": ["get"],
        },
    ],
}
_DISCOVERY: dict[str, dict[str, object]] = {
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
    f"/apis/{GROUP}": {"kind": "APIGroup", "apiVersion": "v1", **_GROUP},
    f"/apis/{GROUP}/{VERSION}": _RESOURCES,
}
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    422: "Invalid",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}
_POD_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

Report = WaitingReport | BoundReport


class Explanations:
    """Explains single pods of *live*. *read_pod*: reads a pod from the API server, ``None`` if there is none."""

    def __init__(self, live: LiveCluster, read_pod: Callable[[PodRef], Pod | None]) -> None:
        self._live = live
        self._read_pod = read_pod
        self._turns = Turns(
            "another pod of this namespace is being explained",
            "pods of other namespaces are being explained",
        )

    def explain(self, namespace: str, name: str) -> Report:
        """Returns the report on a pod for a viewer of its namespace. Raises: PageError, HamiError."""
        with self._turns.of(namespace):
            pod = self._read_pod(PodRef(namespace, name, ""))
            if pod is None:
                raise PageError(f'pods "{name}" not found', 404)
            store = self._live.store
            pods = [pod]
            for other in store.pods.waiting():
                if pod.group and other.ref.uid != pod.ref.uid:
                    if (other.ref.namespace, other.group) == (namespace, pod.group):
                        pods.append(other)
            names = [pod.node_name] if pod.node_name else store.nodes.names()
            event = condition_event(pod)
            events = () if event is None else (event,)
            cluster = self._live.cluster(names, Scope(frozenset([namespace])), pods)
            try:
                return _bounded(explain_pod(cluster, pod, events))
            except HamiError as error:
                raise PageError(str(error), 422) from error


def _bounded(report: Report) -> Report:
    """Returns *report* with the nearest nodes only."""
    if isinstance(report, BoundReport):
        return report
    return msgspec.structs.replace(report, nodes=nearest_nodes(report))


def create_inspect_api(
    front: FrontProxy,
    access: Access,
    explanations: Explanations,
    records: UsageRecords,
    unready_reason: Callable[[], str],
) -> flask.Flask:
    """Returns the application. *unready_reason*: why nothing can be said yet; empty if it can."""
    app = flask.Flask(__name__, static_folder=None)
    for path, document in _DISCOVERY.items():
        app.add_url_rule(path, path, lambda document=document: _json(document), methods=["GET"])

    @app.get(f"/apis/{GROUP}/{VERSION}/namespaces/<namespace>/pods/<name>/explanation")
    def explanation(namespace: str, name: str) -> flask.Response:
        viewer = front.user(flask.request.environ)
        if viewer is None:
            raise PageError("requests come through the API server", 401)
        if _POD_NAME.fullmatch(name) is None:
            raise PageError("expected the name of a pod", 400)
        access.check_pod(viewer, namespace, name)
        if reason := unready_reason():
            raise PageError(reason, 503)
        return _json(versioned(KIND, explanations.explain(namespace, name)))

    @app.get(f"/apis/{GROUP}/{VERSION}/namespaces/<namespace>/usagerecords/<name>")
    def usage_record(namespace: str, name: str) -> flask.Response:
        viewer = front.user(flask.request.environ)
        if viewer is None:
            raise PageError("requests come through the API server", 401)
        access.check_namespace(viewer, namespace)
        return _json(versioned(USAGE_KIND, {"data": records.of(namespace, name)}))

    app.register_error_handler(Exception, _answer_error)
    return app


def _json(document: object, status: int = 200) -> flask.Response:
    response = flask.Response(
        msgspec.json.encode(document), status=status, content_type="application/json"
    )
    response.headers["Cache-Control"] = "no-store"
    return response


def _answer_error(error: Exception) -> flask.Response:
    """Answers with a Status, as the API server does."""
    match error:
        case PageError():
            status, text = error.status, str(error)
        case HTTPException():
            status, text = error.code or 500, error.name
        case HamiError():
            log.warning("question not answered", extra={"error": str(error)})
            status, text = 503, "the API server cannot be asked now, see the dashboard's log"
        case _:
            log.exception("question not answered", exc_info=error)
            status, text = 500, "internal error, see the dashboard's log"
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": text,
        "reason": _REASONS.get(status, "InternalError"),
        "code": status,
    }
    response = _json(document, status)
    if status in (429, 503):
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response
