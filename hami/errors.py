"""The error tree. A pod that does not fit is an answer, not an error."""

__all__ = [
    "AllocationRefused", "ClusterError", "Conflict", "Gone", "HamiError", "HostError", "MalformedInput", "NodeLocked",
    "NotFound",
]


class HamiError(Exception):
    """What HAMi raises for things its caller could not have known."""


class MalformedInput(HamiError):
    """An annotation, a body or the device configuration cannot be read.

    *field* names where it stands, *text* is what stood there, *problem* says what would be right; *says* is the
    whole sentence where the wire fixes it.
    """

    def __init__(self, field: str, text: object, problem: str, says: str | None = None) -> None:
        self.field = field
        self.text = shown if len(shown := str(text)) <= 200 else shown[:200] + "…"
        self.problem = problem
        super().__init__(says or f"{field}: {problem}: {self.text!r}")


class ClusterError(HamiError):
    """The API server said no, or could not be reached; the underlying error is its ``__cause__``.

    *status* is the HTTP status, ``None`` when there was no answer (the outcome of a write is then unknown).
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class NotFound(ClusterError):
    """The object does not exist (404)."""


class Conflict(ClusterError):
    """A newer object exists (409): read it again and retry."""


class Gone(ClusterError):
    """The resource version is too old to continue from (410): list again."""


class NodeLocked(HamiError):
    """Another pod holds the node; retry later."""


class AllocationRefused(HamiError):
    """The node's agent hands nothing out to whoever asked; the text says why."""


class HostError(HamiError):
    """A file, a directory or a device of the node cannot be used as it has to be; names it."""
