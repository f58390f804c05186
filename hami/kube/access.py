"""The access of a user to an API server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAccess:
    """The access to an API server, as kubectl's options of these names say. What is empty is that of the environment.

    *kubeconfig*: a file. *context*: one of its contexts. *cluster*, *user*: their names, instead of the context's.
    *server*: an URL, instead of the cluster's. *impersonated*: the user to act as, with *groups* and *uid*.
    """

    kubeconfig: str = ""
    context: str = ""
    cluster: str = ""
    user: str = ""
    server: str = ""
    impersonated: str = ""
    groups: tuple[str, ...] = ()
    uid: str = ""

    @property
    def impersonation(self) -> tuple[tuple[str, str], ...]:
        """The headers that say so. Source: the Kubernetes documentation, User impersonation."""
        headers: list[tuple[str, str]] = []
        if self.impersonated:
            headers.append(("Impersonate-User", self.impersonated))
        headers += [("Impersonate-Group", group) for group in self.groups]
        if self.uid:
            headers.append(("Impersonate-Uid", self.uid))
        return tuple(headers)
