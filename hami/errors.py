"""The error tree. A pod that does not fit is a result, not an error."""


class HamiError(Exception):
    """Base of all errors that HAMi raises."""


class MalformedInput(HamiError):
    """An annotation, a body or the device configuration cannot be read.

    *field*: the name of the field. *text*: the value found there. *problem*: the expected value. *message*: the whole
    error text, where clients rely on it.
    """

    def __init__(self, field: str, text: object, problem: str, message: str | None = None) -> None:
        self.field = field
        self.text = shown if len(shown := str(text)) <= 200 else shown[:200] + "…"
        self.problem = problem
        super().__init__(message or f"{field}: {problem}: {self.text!r}")


class PodRefused(MalformedInput):
    """Admission cannot accept the specification of a pod; the text is a message for its author."""

    def __init__(self, message: str) -> None:
        super().__init__("pod", "", message, message)


class ClusterError(HamiError):
    """The API server rejected the request or could not be reached. ``__cause__`` is the underlying error.

    *status*: the HTTP status, ``None`` if there was no response (the outcome of a write is then unknown).
    *retry_after_s*: the seconds to wait before another attempt, if the server asks for a pause.
    """

    def __init__(self, message: str, status: int | None = None, retry_after_s: float = 0.0) -> None:
        self.status = status
        self.retry_after_s = retry_after_s
        super().__init__(message)

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later: no response, too many requests, or an error of the server."""
        return self.status is None or self.status == 429 or self.status >= 500


class NotFound(ClusterError):
    """The object does not exist (404)."""


class Conflict(ClusterError):
    """The object has changed (409): read it again and retry."""


class Gone(ClusterError):
    """The resource version is too old to continue from (410): list again."""


class NodeLocked(HamiError):
    """Another pod holds the node lock; retry later."""


class Rejected(HamiError):
    """A call about a pod cannot be carried out now: a filter or bind of kube-scheduler, or an Allocate of the kubelet.
    The text gives the reason."""


class DeviceMissing(Rejected):
    """A claim has a device that its node does not offer. *card*: the UUID of the card."""

    def __init__(self, message: str, card: str) -> None:
        self.card = card
        super().__init__(message)


class HostError(HamiError):
    """A file, directory or device of the host cannot be used; the text names it."""


class DriverError(HamiError):
    """The driver of the node's cards cannot be used.

    *needs_new_process*: whether this process can never use it again, and another one might.
    """

    def __init__(self, message: str, *, needs_new_process: bool = False) -> None:
        self.needs_new_process = needs_new_process
        super().__init__(message)
