"""The calls to the API server about PriorityClasses."""

from __future__ import annotations

from hami.codec.objects import PriorityClass, parse_priority_class
from hami.kube.calls import Calls, path_of


class PriorityClasses(Calls):
    """Calls about PriorityClasses."""

    def priority_class(self, name: str) -> PriorityClass | None:
        """Returns the current PriorityClass; ``None`` if there is none. Raises also: MalformedInput."""
        return self._get(path_of("priorityclasses", None, name), parse_priority_class)
