"""A term: a key or name on an object that means something to HAMi, and the form of its text."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hami.codec.forms import Form

__all__ = ["Place", "Term", "Author"]


class Place(enum.StrEnum):
    """Where a term stands."""

    POD_ANNOTATION = "annotation of a pod"
    POD_LABEL = "label of a pod"
    NAMESPACE_LABEL = "label of a namespace"
    NODE_ANNOTATION = "annotation of a node"
    NODE_LABEL = "label of a node"
    RESOURCE = "resource of a container"
    QUOTA = "entry of a ResourceQuota"


class Author(enum.StrEnum):
    """Who writes a term."""

    USER = "user"
    OPERATOR = "operator"
    HAMI = "HAMi"


@dataclass(frozen=True, slots=True)
class Term:
    """*meaning*: what it is for, in a sentence without a verb. *vendor*: the key of the vendor whose pods it is for;
    empty for all."""

    key: str
    form: Form
    meaning: str
    place: Place = Place.POD_ANNOTATION
    author: Author = Author.USER
    vendor: str = ""
