"""The pages of the kubelet's probes."""

from __future__ import annotations

from collections.abc import Callable

from hami.web.pages import Page


class Health:
    """Reports to the kubelet's probes whether the running program is ready, and whether its threads work."""

    def __init__(self) -> None:
        self._unready_reason: Callable[[], str] = lambda: "starting"
        self._hung_reason: Callable[[], str] = str

    def follow(self, unready_reason: Callable[[], str], hung_reason: Callable[[], str] = str) -> None:
        """Reports what these return from now on; empty means ready, or that all threads work."""
        self._unready_reason, self._hung_reason = unready_reason, hung_reason

    def readyz(self, accept: str) -> Page:
        """Returns status 200 if the program is ready, otherwise 503 with the reason."""
        return _page(self._unready_reason(), 503)

    def healthz(self, accept: str) -> Page:
        """Returns status 200, or 500 with what has died or hangs. A failed start is no reason."""
        return _page(self._hung_reason(), 500)


def _page(reason: str, status: int) -> Page:
    return Page((f"{reason or 'ok'}\n".encode(),), status=status if reason else 200)
