"""Several YAML documents of the project or a tool of Kubernetes, read by libyaml: PyYAML's own reader takes ten times
as long. For one document there is `hami.codec.documents.parse_own_yaml`."""

from __future__ import annotations

from typing import Any

import yaml

__all__ = ["read_documents"]


def read_documents(text: str) -> list[Any]:
    """Returns the plain value of each document."""
    return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
