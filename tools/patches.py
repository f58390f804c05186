"""JSON patches (RFC 6902) between two YAML documents, with the text of the second one as their values.

``tools.manifests`` makes the components of ``manifests/`` with them. An item at the end of a list is added by ``/-``,
so that several components can be combined; a position elsewhere is tested before.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

__all__ = ["Document", "parse", "render_patch"]

Path = tuple[str | int, ...]
_PLAIN = re.compile(r"[A-Za-z0-9/_=.~<>-][A-Za-z0-9/_=.:~<>-]*\Z")
"""Scalars that mean the same without quotes, also in a list in one line."""


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document. *text*: of all documents of its file, to which the marks of *node* point."""

    node: yaml.MappingNode
    text: str

    @property
    def content(self) -> dict[str, object]:
        """The document as objects of Python."""
        content: dict[str, object] = _value(self.node)  # type: ignore[assignment]
        return content


def parse(text: str) -> list[Document]:
    """Returns the documents in *text* that are not empty."""
    found = []
    for node in yaml.compose_all(text, yaml.SafeLoader):
        if isinstance(node, yaml.MappingNode):
            found.append(Document(node, text))
    return found


def render_patch(before: Document, after: Document) -> str:
    """Returns the patch that makes *after* of *before*; empty if they are equal."""
    tested: set[Path] = set()
    lines: list[str] = []
    for operation in _operations(before.node, after.node, ()):
        lines.extend(_tests(before.content, operation, tested))
        lines.append(_rendered(operation, after.text))
    return "".join(lines)


@dataclass(frozen=True, slots=True)
class _Operation:
    op: str
    path: Path
    node: yaml.Node | None = None
    old: object = None
    """What a replaced scalar was."""


def _operations(before: yaml.Node, after: yaml.Node, path: Path) -> Iterator[_Operation]:
    if _value(before) == _value(after):
        return
    if isinstance(before, yaml.MappingNode) and isinstance(after, yaml.MappingNode):
        yield from _of_mappings(before, after, path)
    elif isinstance(before, yaml.SequenceNode) and isinstance(after, yaml.SequenceNode):
        if after.value:
            yield from _of_lists(before.value, after, path)
        else:
            yield _Operation("replace", path, after)
    else:
        yield _Operation("replace", path, after, _value(before))


def _of_mappings(
    before: yaml.MappingNode, after: yaml.MappingNode, path: Path
) -> Iterator[_Operation]:
    old = {key.value: value for key, value in before.value}
    new = {key.value: value for key, value in after.value}
    for key, value in new.items():
        if key in old:
            yield from _operations(old[key], value, (*path, key))
        else:
            yield _Operation("add", (*path, key), value)
    for key in old:
        if key not in new:
            yield _Operation("remove", (*path, key))


def _of_lists(old: list[yaml.Node], after: yaml.SequenceNode, path: Path) -> Iterator[_Operation]:
    new = after.value
    start = 0
    while start < min(len(old), len(new)) and _value(old[start]) == _value(new[start]):
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and _value(old[-1 - end]) == _value(new[-1 - end]):
        end += 1
    changed = old[start : len(old) - end]
    added = new[start : len(new) - end]
    if any(map(_differ_by_name, changed, added)):
        yield _Operation("replace", path, after)
        return
    for place, (one, other) in enumerate(zip(changed, added, strict=False), start):
        yield from _operations(one, other, (*path, place))
    common = start + min(len(changed), len(added))
    for place in range(len(old) - end - 1, common - 1, -1):
        yield _Operation("remove", (*path, place))
    for place, value in enumerate(added[len(changed) :], common):
        yield _Operation("add", (*path, place if end else "-"), value)


def _differ_by_name(one: yaml.Node, other: yaml.Node) -> bool:
    """Reports whether two items are of different names, and so not versions of one."""
    names = []
    for value in (_value(one), _value(other)):
        if isinstance(value, dict):
            names.append(value.get("name"))
    return len(set(names)) == 2


def _tests(document: object, operation: _Operation, tested: set[Path]) -> Iterator[str]:
    """Yields the tests that *operation* needs: the names of items on its way, and a scalar that it replaces."""
    here = document
    for depth, step in enumerate(operation.path[:-1]):
        if isinstance(here, list):
            here = here[int(step)]
        elif isinstance(here, dict):
            here = here[step]
        place = operation.path[: depth + 1]
        if (
            isinstance(step, int)
            and isinstance(here, dict)
            and "name" in here
            and place not in tested
        ):
            tested.add(place)
            yield _line("test", (*place, "name"), here["name"])
    if operation.op == "replace" and _is_short(operation.old):
        yield _line("test", operation.path, operation.old)


def _line(op: str, path: Path, value: object) -> str:
    return f"- {{op: {op}, path: {_pointer(path)}, value: {_scalar(value)}}}\n"


def _is_short(value: object) -> bool:
    return isinstance(value, str | bool | int) and len(str(value)) < 100 and "\n" not in str(value)


def _pointer(path: Path) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.match(value) and yaml.safe_load(value) == value:
        return value
    return json.dumps(value)


def _rendered(operation: _Operation, text: str) -> str:
    pointer = _pointer(operation.path)
    if operation.node is None:
        return f"- {{op: {operation.op}, path: {pointer}}}\n"
    value = _value(operation.node)
    if _is_short(value):
        return _line(operation.op, operation.path, value)
    if not value:
        return f"- {{op: {operation.op}, path: {pointer}, value: {json.dumps(value)}}}\n"
    source = _source(operation.node, text)
    head = f"- op: {operation.op}\n  path: {pointer}\n"
    if isinstance(operation.node, yaml.ScalarNode) and "\n" in source:
        first, _, rest = source.partition("\n")
        return f"{head}  value: {first}\n{textwrap.indent(textwrap.dedent(rest), '    ')}\n"
    if "\n" not in source:
        return f"{head}  value: {source}\n"
    columns = 2 if isinstance(operation.node, yaml.SequenceNode) else 4
    return f"{head}  value:\n{textwrap.indent(source, columns * ' ')}\n"


def _source(node: yaml.Node, text: str) -> str:
    """Returns the text of *node*, with its comments, as if it began in the first column."""
    start, end = node.start_mark, node.end_mark
    if isinstance(node, yaml.CollectionNode) and node.flow_style:
        return text[start.index : end.index]
    lines = text[: end.index].splitlines()[start.line :]
    lines[0] = lines[0][start.column :]
    while not lines[-1].strip() or lines[-1].lstrip().startswith("#"):
        lines.pop()
    rest = [line.removeprefix(" " * start.column) for line in lines[1:]]
    return "\n".join([lines[0], *rest])


def _value(node: yaml.Node) -> object:
    constructor = yaml.constructor.SafeConstructor()
    value: object = constructor.construct_document(node)
    return value
