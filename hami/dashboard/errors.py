"""The error of a page, for the viewer."""

from hami.errors import HamiError


class PageError(HamiError):
    """There is no page for the viewer. *status*: of the answer."""

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)


class NotListable(PageError):
    """The viewer may not list the pods of the namespaces that are requested."""

    def __init__(self, text: str) -> None:
        super().__init__(text, 403)
