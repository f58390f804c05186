"""``kubectl hami dashboard``: the pages on this machine, with the user's own access."""

from __future__ import annotations

import logging
import os
import sys
import time
import webbrowser
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

import click

from hami.cli.client import Client, people_command
from hami.errors import HamiError
from hami.runtime import logs
from hami.runtime.options import Address
from hami.runtime.signals import Program

if TYPE_CHECKING:
    from hami.kube.api import Api
    from hami.kube.reviews import Reviews

HOST = "127.0.0.1"
FLAG = "--port"
WATCHED = ("nodes", "pods", "resourcequotas")


class Served(Program, Protocol):
    """A program that serves pages."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the pages."""


class _Announced:
    """*program*, which says where it serves once it does. *opens_browser*: it opens one there, if there is a screen."""

    def __init__(self, program: Served, path: str, *, opens_browser: bool) -> None:
        self._program = program
        self._path = path
        self._opens_browser = opens_browser
        self.stop = program.stop
        self.hung_reason = program.hung_reason

    def start(self) -> None:
        """Starts the program. Raises: HamiError."""
        self._program.start()
        url = f"http://localhost:{self._program.address[1]}{self._path}"
        click.echo(f"The dashboard is at {url} until you press Ctrl-C.")
        if self._opens_browser and has_screen():
            webbrowser.open(url)


def has_screen() -> bool:
    """Reports whether a browser would have a window. Without one, Linux would start one in the terminal."""
    if sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@people_command(
    "dashboard",
    examples="""
hami dashboard
hami dashboard -n team-a --port 9000 --no-browser
""",
    has_forms=False,
    hidden=("-A", "--snapshot"),
)
@click.option(
    FLAG,
    type=click.IntRange(0, 65_535),
    default=8445,
    show_default=True,
    help="Port on 127.0.0.1; 0 for a free one.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def dashboard_command(*, client: Client, port: int, no_browser: bool) -> None:
    """Show the dashboard in a browser of this machine.

    If you may list and watch nodes, pods and quotas of the cluster, it is served here with your access. Otherwise, it
    is that of the cluster, with your token, for which you need the right to get services/proxy there, and -n for the
    namespace whose pods you may list. Every user of this machine can open it while it runs.
    """
    from hami.kube.api import Api
    from hami.kube.reviews import Reviews
    from hami.runtime.signals import listen, run_until_signal

    if client.snapshot:
        raise HamiError("the dashboard shows a cluster, not a snapshot: use hami top --snapshot")
    logs.configure()
    logging.getLogger("hami").setLevel(logging.WARNING)
    api = Api.connect(client.access, timeout=client.request_timeout or 30.0)
    reviews = Reviews(api)
    address = Address(HOST, port)
    if may_see_all(reviews):
        program: Served = _own(client, api, address)
    else:
        program = _forwarded(client, api, reviews, address)
    path = "/"
    if client.namespace:
        path += "?" + urlencode({"namespace": client.namespace})
    announced = _Announced(program, path, opens_browser=not no_browser)
    click.get_current_context().exit(run_until_signal(announced, listen()))


def may_see_all(reviews: Reviews) -> bool:
    """Reports whether the user may see all that the pages show. Raises: HamiError."""
    for resource in WATCHED:
        for verb in ("list", "watch"):
            if not reviews.may_i(verb, resource):
                return False
    return True


def _own(client: Client, api: Api, address: Address) -> Served:
    """Returns a dashboard of this process. Raises: HamiError."""
    from hami.dashboard.program import DashboardProgram
    from hami.dashboard.settings import DashboardSettings
    from hami.inspect.cluster import catalog_of
    from hami.runtime.clock import utc_now
    from hami.state.store import Store
    from hami.state.view import Policies

    store = Store(
        catalog_of(client.device_config()),
        Policies(client.node_policy, client.device_policy),
        clock=time.monotonic,
        now=utc_now,
    )
    # pods of the monitor have addresses that this machine can rarely reach
    settings = DashboardSettings(bind_address=address, monitor_selector="")
    return DashboardProgram(settings, store, api=api, flag=FLAG)


def _forwarded(client: Client, api: Api, reviews: Reviews, address: Address) -> Served:
    """Returns what shows the dashboard of the cluster. Raises: HamiError, with what to do, if the user may not."""
    from hami.dashboard.forwarder import SERVICE, Forwarder, forwarding_app

    namespace = client.config_map()[0]
    lacking = f"you may not list and watch {', '.join(WATCHED)} of the cluster"
    if client.access.impersonated:
        raise HamiError(
            f"{lacking}, and the dashboard in the cluster asks for a token, which --as has not"
        )
    if not reviews.may_i("get", "services/proxy", namespace, SERVICE):
        raise HamiError(
            f"{lacking}, and not get services/proxy of {SERVICE} in namespace {namespace} either: "
            "ask an administrator for one of these rights"
        )
    token = api.bearer_token()
    if not token:
        raise HamiError(
            f"{lacking}, and the dashboard in the cluster asks for a token, which your kubeconfig does not have: "
            "kubectl config set-credentials hami --token=$(kubectl create token ACCOUNT -n NAMESPACE), then use "
            "--user hami"
        )
    return Forwarder(forwarding_app(api, namespace, token), address, flag=FLAG)
