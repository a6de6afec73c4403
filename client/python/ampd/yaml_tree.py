"""A job file, or a Python value, as a tree of values with their lines: what spec_reader makes messages of."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import math
import numbers
import os
from typing import Any, List, Mapping

import yaml

from ampd.errors import FieldViolation, InvalidArgument, invalid

MAX_BYTES = 4 << 20
MAX_DEPTH = 64
NULLS = ("", "~", "null", "Null", "NULL")


@dataclasses.dataclass
class Node:
    #: "null", "scalar", "list" or "map".
    kind: str
    line: int = 0
    #: Of a scalar: without quotes, so that it may be a number or a bool.
    plain: bool = False
    scalar: str = ""
    keys: List[Node] = dataclasses.field(default_factory=list)
    #: Of a list, or those of `keys`.
    values: List[Node] = dataclasses.field(default_factory=list)

    def describe(self) -> str:
        if self.kind != "scalar":
            return {"null": "null", "list": "a list", "map": "a map"}[self.kind]
        if self.plain and looks_like_number(self.scalar):
            return f"the number {self.scalar}"
        return self.scalar if self.plain and self.scalar in ("true", "false") else f'"{self.scalar}"'


def looks_like_number(text: str) -> bool:
    if not text or text.strip("0123456789+-.eE"):
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_yaml(text: str, name: str) -> Node:
    """The tree of one document. InvalidArgument, with the line, for what ampctl refuses too: anchors, aliases, tags, a second
    document, text over 4 MiB, nesting deeper than 64."""
    if len(text.encode()) > MAX_BYTES:
        raise _refused(name, 0, f"must be at most {MAX_BYTES} bytes")
    try:
        return _Parser(name).parse(text)
    except yaml.MarkedYAMLError as error:
        if error.problem == "found unexpected end of stream" and error.context_mark:
            raise _refused(name, error.context_mark.line + 1, "a quote without its end") from error
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        tab = "'\\t'" in (error.problem or "")
        raise _refused(name, line, "a tab; YAML indents with spaces" if tab else error.problem or "no YAML") from error
    except yaml.YAMLError as error:
        raise _refused(name, 0, str(error)) from error


def from_python(value: Any, depth: int = 0) -> Node:
    """The tree that the value would be in a job file. Strings are strings; numbers of NumPy are numbers."""
    if depth > MAX_DEPTH:
        raise InvalidArgument(f"nested deeper than {MAX_DEPTH}")
    if hasattr(value, "tolist"):  # A scalar or an array of NumPy.
        value = value.tolist()
    if value is None:
        return Node("null")
    if isinstance(value, Mapping):
        keys = [Node("scalar", scalar=str(key)) for key in value]
        return Node("map", keys=keys, values=[from_python(one, depth + 1) for one in value.values()])
    if isinstance(value, (list, tuple)):
        return Node("list", values=[from_python(one, depth + 1) for one in value])
    return _scalar(value)


def _scalar(value: Any) -> Node:
    if isinstance(value, bool):
        return Node("scalar", plain=True, scalar="true" if value else "false")
    if isinstance(value, numbers.Integral):
        return Node("scalar", plain=True, scalar=str(int(value)))
    if isinstance(value, numbers.Real):
        return Node("scalar", plain=True, scalar=_real(float(value)))
    if isinstance(value, bytes):
        return Node("scalar", scalar=base64.b64encode(value).decode())
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            raise InvalidArgument(f"{value!r}: a time needs a time zone, such as datetime.timezone.utc")
        return Node("scalar", scalar=value.astimezone(datetime.timezone.utc).isoformat().replace("+00:00", "Z"))
    if isinstance(value, (str, os.PathLike)):
        return Node("scalar", scalar=os.fspath(value))
    raise InvalidArgument(f"a job file has no values such as {value!r} ({type(value).__name__})")


def _real(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _refused(name: str, line: int, what: str) -> InvalidArgument:
    return invalid([FieldViolation("", what, f"{name}:{line}" if line else name)])


class _Parser:
    def __init__(self, name: str) -> None:
        self._name = name
        self._root = Node("null")
        self._stack: List[Node] = []
        self._documents = 0

    def parse(self, text: str) -> Node:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            self._take(event, event.start_mark.line + 1)
        return self._root

    def _take(self, event: Any, line: int) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise _refused(self._name, 0, "holds more than one document")
        elif isinstance(event, yaml.AliasEvent):
            raise _refused(self._name, line, "aliases are not supported")
        elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            self._put(self._stack.pop())
        elif isinstance(event, yaml.NodeEvent):
            self._admit(event, line)

    def _admit(self, event: Any, line: int) -> None:
        if event.anchor is not None:
            raise _refused(self._name, line, "anchors are not supported")
        if event.tag not in (None, "!"):
            raise _refused(self._name, line, "tags are not supported")
        if isinstance(event, yaml.ScalarEvent):
            plain = event.style is None and event.tag is None
            null = plain and event.value in NULLS
            self._put(Node("null", line) if null else Node("scalar", line, plain, event.value))
            return
        if len(self._stack) >= MAX_DEPTH:
            raise _refused(self._name, line, f"nested deeper than {MAX_DEPTH}")
        if self._expects_key():
            raise _refused(self._name, line, "a key must be a name")
        self._stack.append(Node("list" if isinstance(event, yaml.SequenceStartEvent) else "map", line))

    def _expects_key(self) -> bool:
        return bool(self._stack) and self._stack[-1].kind == "map" and len(self._stack[-1].keys) == len(self._stack[-1].values)

    def _put(self, node: Node) -> None:
        if not self._stack:
            self._root = node
        elif not self._expects_key():
            self._stack[-1].values.append(node)
        elif node.kind == "scalar":
            self._stack[-1].keys.append(node)
        else:
            raise _refused(self._name, node.line, "a key must be a name")
