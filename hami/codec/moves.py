"""Moves that make room for a pod: how its label asks for them, and how far the scheduler has come with them.

MOVES is what the next leader needs: where the place of the pod is, and which pods are still to leave it. It is only a
hint: each step is proven again before it is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from hami.codec.documents import decode
from hami.codec.keys import MAKE_ROOM, MOVES
from hami.errors import MalformedInput

MOST_MOVES = 20
"""Moves for one pod."""
MAX_TEXT = 4096
"""Characters of MOVES."""
VERSION = 1
_NUMBER = re.compile(r"[1-9][0-9]?")
_Uid = Annotated[str, Meta(min_length=1, max_length=128)]


class MovesRecord(msgspec.Struct, frozen=True):
    """The moves that are made for a pod, which is promised a place on *node*.

    *moves*: uids of the pods that are still to move, in order. *made*: how many have been moved. While the first of
    *moves* is evicted, *controller* is the uid of the object that makes its replacement, and *pods* is how many bound
    pods that object had before.
    """

    node: Annotated[str, Meta(min_length=1, max_length=253)]
    moves: Annotated[tuple[_Uid, ...], Meta(max_length=MOST_MOVES)]
    made: Annotated[int, Meta(ge=0, le=MOST_MOVES)] = 0
    controller: Annotated[str, Meta(max_length=128)] = ""
    pods: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    version: Annotated[int, Meta(ge=VERSION, le=VERSION)] = VERSION

    @property
    def total(self) -> int:
        """The number of moves, with those that have been made."""
        return self.made + len(self.moves)


_RECORD = msgspec.json.Decoder(MovesRecord)


def parse_most_moves(labels: Mapping[str, str]) -> int | None:
    """Returns how many pods may be moved for a pod with these *labels*; ``None`` if nobody asks for that.

    Raises: MalformedInput.
    """
    text = labels.get(MAKE_ROOM)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or int(text) > MOST_MOVES:
        raise MalformedInput(MAKE_ROOM, text, f"expected a number of moves from 1 to {MOST_MOVES}")
    return int(text)


def render_moves_record(record: MovesRecord) -> str:
    """Returns the text that :func:`parse_moves_record` reads."""
    return msgspec.json.encode(record).decode()


def parse_moves_record(annotations: Mapping[str, str]) -> MovesRecord | None:
    """Returns the record in *annotations*; ``None`` if there is none, or it cannot be read."""
    text = annotations.get(MOVES)
    if text is None or len(text) > MAX_TEXT:
        return None
    try:
        return decode(MOVES, _RECORD, text.encode(errors="surrogatepass"))
    except MalformedInput:
        return None
