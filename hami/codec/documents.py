"""Configuration files: YAML or JSON text to typed records, with errors that name file, path and value.

A document is described by ``msgspec.Struct`` types. ``Meta(description=…)`` of a field completes "expected …" in an
error, and is shown in the configuration reference. This module opens no file.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from msgspec.structs import FieldInfo
from yaml.constructor import ConstructorError

from hami.errors import MalformedInput

T = TypeVar("T")

_prepared = set[Any]()  # types for `convert`
_preparing = threading.Lock()

_MAX_BITS = 4096  # far below the limit of sys.get_int_max_str_digits()

# in messages of msgspec: the steps of a path such as `$.cards[0].memory`, and a field that is missing or unknown
_STEP = re.compile(r"\.[^.[`]+|\[[0-9]+\]")
_FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(.*?)`(?: - at |$)")
_NULL_FIELD = re.compile(r"got `null` - at `\$.*[^\]]`$")  # not of an item of a list, or of a map

_KINDS: Mapping[Any, str] = MappingProxyType(
    {
        bool: "true or false",
        str: "a text",
        int: "a whole number",
        float: "a number",
        list: "a list",
        tuple: "a list",
    }
)


def decode_yaml(text: str, type: type[T], source: str, *, unique_keys: bool = False) -> T:
    """The record that *text* describes; *source* is the file's name, for errors. Raises: MalformedInput."""
    return convert(parse_yaml(text, source, unique_keys=unique_keys), type, places_in(source))


def parse_yaml(text: str, source: str, *, unique_keys: bool = False) -> Any:
    """The plain value of a YAML document. With *unique_keys* a mapping may not repeat a key.

    Raises: MalformedInput, which names line and column.
    """
    with _yaml_errors(text, source):
        return yaml.load(text, _UniqueKeyLoader if unique_keys else _Loader)


def parse_own_yaml(text: str) -> Any:
    """The plain value of a YAML document of this package, which each start of a program reads: libyaml takes a tenth of
    the time. Its limits are not those that texts of others need."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def entries(value: object) -> list[Mapping[str, Any]]:
    """The mappings in *value*, a list from JSON that nobody has checked."""
    if not isinstance(value, list):
        return []
    return [entry for entry in value if isinstance(entry, dict)]


def parse_yaml_documents(text: str, source: str) -> list[Any]:
    """The plain values of YAML documents that ``---`` separates. Raises: MalformedInput as :func:`parse_yaml`."""
    with _yaml_errors(text, source):
        return list(yaml.load_all(text, _Loader))


@contextlib.contextmanager
def _yaml_errors(text: str, source: str) -> Iterator[None]:
    """Raises: MalformedInput for what the parser cannot read of *text*."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        if mark is None:
            raise MalformedInput(source, "", f"not YAML: {error.problem}") from error
        quoted = text.splitlines()[mark.line : mark.line + 1]
        raise MalformedInput(
            source,
            "".join(quoted),
            f"not YAML in line {mark.line + 1}, column {mark.column + 1}: {error.problem}",
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        # the last three: a character beyond Unicode, and nesting that is too deep
        raise MalformedInput(source, "", f"not YAML: {error}") from error


class _Loader(yaml.SafeLoader):
    """Adds the position to errors in numbers, dates and tags. Refuses integers that Python does not print."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Returns the value of *node*."""
        try:
            value = super().construct_object(node, deep)
        except (AttributeError, KeyError, OverflowError, ValueError) as error:
            raise ConstructorError(
                None, None, f"malformed value: {error}", node.start_mark
            ) from error
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise ConstructorError(
                None, None, "malformed value: integer too large", node.start_mark
            )
        return value


class _UniqueKeyLoader(_Loader):
    """Refuses mappings that repeat a key. Merged keys (``<<``) may be overridden."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Returns the next mapping, with its own keys only: merged keys are inserted later."""
        node = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                raise ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
            keys.add(str(key.value))
        return node


def parse_json(text: str, source: str) -> Any:
    """The plain value of a JSON document. Raises: MalformedInput."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedInput(source, text, f"not JSON: {error}") from error


def decode(
    field: str,
    decoder: msgspec.json.Decoder[T],
    data: str | bytes | msgspec.Raw,
    expected: str = "",
) -> T:
    """The value that *data* (JSON) describes. Raises: MalformedInput for *field*."""
    try:
        return decode_object(decoder, data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = data if isinstance(data, str) else bytes(data)[:200].decode(errors="replace")
        problem = f"expected {expected} ({error})" if expected else str(error)
        raise MalformedInput(field, text, problem) from error


def decode_object(decoder: msgspec.json.Decoder[T], data: str | bytes | msgspec.Raw) -> T:
    """The value that *data* (JSON) describes. As in Kubernetes, a field that is null is absent: it gets its default.

    Raises: msgspec.DecodeError, UnicodeDecodeError, RecursionError.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        if not _NULL_FIELD.search(str(error)):
            raise
    document = _without_null_fields(msgspec.json.decode(data), decoder.type)
    return decoder.decode(msgspec.json.encode(document))


def _without_null_fields(value: Any, type: Any) -> Any:
    """Returns *value* without those fields of Structs that are null. A null in a list or in a map stays."""
    type = _plain(type)
    arguments = get_args(type)
    if isinstance(value, list) and arguments:
        return [_without_null_fields(item, arguments[0]) for item in value]
    if not isinstance(value, dict):
        return value
    if get_origin(type) is dict:
        return {key: _without_null_fields(item, arguments[1]) for key, item in value.items()}
    if _is_struct(type):
        return _fields_given(value, type)
    return value


def _fields_given(value: dict[str, Any], type: Any) -> dict[str, Any]:
    """Returns the members of *value* that are no fields of the Struct *type*, or not null."""
    types = {field.encode_name: field.type for field in struct_fields(type)}
    given = {}
    for key, member in value.items():
        if member is not None or key not in types:
            given[key] = _without_null_fields(member, types.get(key))
    return given


def convert(value: object, type: type[T], place: Callable[[str], str]) -> T:
    """*value* as *type*, a Struct or any other type that msgspec knows.

    *place* turns a path in the document, such as ``cards[0].memory`` (empty for the document itself), into the name
    that an error shows. Raises: MalformedInput for the first part that does not fit.
    """
    if type not in _prepared:
        _prepare(type)
    try:
        return msgspec.convert(value, type)
    except (msgspec.ValidationError, RecursionError) as error:
        path, wrong, problem = _fault(value, type, str(error))
        raise MalformedInput(place(path), wrong, problem) from None


def _prepare(type: Any) -> None:
    """Has msgspec read the fields of *type* and of the Structs in it, which it does the first time that it needs them.
    Two threads at once end the process with a segmentation fault (msgspec 0.22)."""
    with _preparing:
        if type not in _prepared:
            msgspec.json.Decoder(type)
            _prepared.add(type)


def places_in(source: str, field: str = "") -> Callable[[str], str]:
    """Returns the function that names a path in *field* of *source*, such as a file, for `convert`."""
    return lambda path: ": ".join(filter(None, (source, ".".join(filter(None, (field, path))))))


def unknown_keys(value: object, type: Any, path: str = "") -> Iterator[str]:
    """Paths of the keys that *type* does not have, for Structs that tolerate them."""
    for part in _parts(value, type, path):
        if part.type is None:
            yield part.path
        else:
            yield from unknown_keys(part.value, part.type, part.path)


def known_part(value: Any, type: Any) -> Any:
    """Returns *value* without the keys that *type* does not have."""
    type = _plain(type)
    if isinstance(value, list):
        arguments = get_args(type)
        if arguments:
            return [known_part(inner, arguments[0]) for inner in value]
    if not isinstance(value, dict):
        return value
    if not _is_struct(type):
        return value
    part = {}
    for field in struct_fields(type):
        if field.encode_name in value:
            part[field.encode_name] = known_part(value[field.encode_name], field.type)
    return part


def describe(type: Any) -> str:
    """The values that *type* accepts, in words."""
    if description := _description(type):
        return description
    type = _plain(type)
    if get_origin(type) is Literal:
        return " or ".join(map(str, get_args(type)))
    if get_origin(type) in (Union, UnionType):
        return " or ".join(map(describe, get_args(type)))
    return _KINDS.get(get_origin(type) or type, "a mapping")


class _Part(NamedTuple):
    """A value in a mapping or a list; *type* is ``None`` for a key that the Struct does not have."""

    path: str
    value: object
    type: Any


def _parts(value: object, type: Any, path: str) -> Iterator[_Part]:
    """The parts of *value*, if it is a mapping for a Struct or a list; none of a list that has a description."""
    type, described = _plain(type), _description(type)
    if _is_struct(type) and isinstance(value, dict):
        types = {field.encode_name: field.type for field in struct_fields(type)}
        for key, inner in value.items():
            yield _Part(f"{path}.{key}".removeprefix("."), inner, types.get(key))
    elif get_origin(type) in (list, tuple) and isinstance(value, list) and not described:
        for index, inner in enumerate(value):
            yield _Part(f"{path}[{index}]", inner, get_args(type)[0])


def _fault(value: Any, type: Any, message: str) -> tuple[str, object, str]:
    """Path, value and problem of the part of *value* that msgspec's *message* names.

    A list whose field has a description is reported as a whole: the description says what its items must be.
    """
    path = ""
    for step in _STEP.findall(message.rpartition("`$")[2]):
        parts = {part.path: part for part in _parts(value, type, path)}
        part = parts.get(f"{path}{step}".removeprefix("."))
        if part is None:
            break
        path, value, type = part
    struct = _plain(type)
    match = _FIELD.match(message)
    if match is not None and _is_struct(struct):
        place = f"{path}.{match[1]}".removeprefix(".")
        return place, *_field_fault(value, struct, match[1])
    unquoted = ""
    if isinstance(value, str) and struct in (bool, int, float):
        unquoted = " without quotes"
    return path, value, f"expected {describe(type)}{unquoted}"


def _field_fault(value: Any, struct: Any, name: str) -> tuple[object, str]:
    """Value and problem of a field that is missing, or that *struct* does not have."""
    types = {field.encode_name: field.type for field in struct_fields(struct)}
    if name in types:
        return "", f"missing, expected {describe(types[name])}"
    return value[name], f"expected one of {', '.join(sorted(types))}"


def _description(type: Any) -> str:
    if get_origin(type) in (Union, UnionType):
        others = [alternative for alternative in get_args(type) if alternative is not NoneType]
        return _description(others[0]) if len(others) == 1 else ""
    if get_origin(type) is Annotated:
        for meta in get_args(type)[1:]:
            if getattr(meta, "description", None):
                return str(meta.description)
    return ""


@functools.cache
def struct_fields(type: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    """The fields of a Struct; msgspec itself resolves their types anew in each call."""
    return msgspec.structs.fields(type)


def _plain(type: Any) -> Any:
    """*type* without ``Annotated`` and ``| None``."""
    if get_origin(type) is Annotated:
        return _plain(get_args(type)[0])
    if get_origin(type) in (Union, UnionType):
        others = [alternative for alternative in get_args(type) if alternative is not NoneType]
        return _plain(others[0]) if len(others) == 1 else type
    return type


def _is_struct(type: Any) -> bool:
    return isinstance(type, msgspec.StructMeta)
