"""The usual pods that the flag ``--usual-pods`` names."""

from __future__ import annotations

from hami.runtime.options import read_text
from hami.runtime.settings import ClusterSettings
from hami.scheduling.usual_pods import UsualPod
from hami.scheduling.usual_pods_file import parse_usual_pods
from hami.vendors.spec import Catalog


def fixed_usual_pods(settings: ClusterSettings, vendors: Catalog) -> dict[UsualPod, float]:
    """Returns the usual pods that *settings* fix, each with how often it comes; none if they are learnt. Raises:
    HamiError."""
    path = settings.usual_pods
    if not path:
        return {}
    return parse_usual_pods(read_text("--usual-pods", path), path, vendors)
