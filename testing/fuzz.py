"""Bodies that are almost right: valid JSON with a value replaced, a key renamed or bytes damaged."""

import copy
import json

from hypothesis import strategies as st

plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["-1", "3k", "1.5", "1e3", "9999999999999"])
)
values = (
    plain | st.lists(plain, max_size=2) | st.dictionaries(st.text(max_size=3), plain, max_size=2)
)


def paths(value, path=()):
    """The paths to all parts of *value*."""
    yield path
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from paths(inner, (*path, key))


@st.composite
def mutated(draw, document):
    """*document* as bytes, with up to three parts replaced."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(paths(document))))
        document = replaced(document, path, draw(values | st.floats()))
    return json.dumps(document).encode()


@st.composite
def damaged(draw, document):
    """*document* as bytes of which a stretch is missing or overwritten."""
    data = json.dumps(document).encode()
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 20)))
    return data[:start] + draw(st.binary(max_size=5)) + data[end:]


def bodies(document):
    """Anything at all, and things that are almost *document*."""
    return st.binary() | mutated(document) | damaged(document)


def replaced(document, path, value):
    """*document* with *value* at *path*."""
    if not path:
        return value
    changed = copy.copy(document)
    changed[path[0]] = replaced(document[path[0]], path[1:], value)
    return changed
