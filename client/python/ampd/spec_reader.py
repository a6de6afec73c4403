"""A tree of values to any protobuf message by reflection, as ampctl does it (proto/spec/yaml.h has the rules)."""

from __future__ import annotations

import base64
import binascii
import collections
import difflib
import math
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from google.protobuf import message as protobuf
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from ampd.errors import FieldViolation, invalid
from ampd.yaml_tree import Node, looks_like_number

MAX_ERRORS = 20
_EXACT = 2**53
_FLOAT_MAX = 3.4028234663852886e38
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_SPECIAL = {"NaN": math.nan, ".nan": math.nan, ".NaN": math.nan, "Infinity": math.inf, ".inf": math.inf, "+.inf": math.inf,
            "-Infinity": -math.inf, "-.inf": -math.inf}
# What other programs call fields, and their dtypes: for suggestions, as in proto/spec/yaml_reader.cc and yaml_scalar.cc.
_OWN_NAMES = {"lr": "learning_rate", "wd": "weight_decay", "betas": "beta1"}
_DTYPES = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32", "half": "FP16"}
# As IsWindowField() in proto/spec/window_fields.h: a number stands for a list of it.
_WINDOW_FIELDS = {f"ampd.v1.{layer}.{name}" for layer, names in {
    "Conv2dLayer": ("kernel", "stride", "dilation", "pads"),
    "ConvTranspose2dLayer": ("kernel", "stride", "pads", "output_padding", "dilation"),
    "Pool2dLayer": ("size", "stride", "pads", "dilation")}.items() for name in names}


class _Wrong(Exception):
    pass


class Reader:
    """Reads trees into messages. `errors` has what was refused, `lines` where each field stands."""

    def __init__(self) -> None:
        self.errors: List[Tuple[int, str, str]] = []
        self.lines: Dict[str, int] = {}
        self._root: Optional[Descriptor] = None

    def check(self, name: str) -> None:
        """InvalidArgument unless everything could be read; `name` is the file's, empty for values of Python."""
        if not self.errors:
            return
        raise invalid(FieldViolation(path, what, f"{name}:{line}" if name and line else name)
                      for line, path, what in self.errors[:MAX_ERRORS])

    def read_message(self, node: Node, path: str, message: Any) -> None:
        if node.kind != "map":
            return self._fail(node.line, path, f"expected a map of fields, got {node.describe()}")
        if not path:
            self._root = message.DESCRIPTOR
        members: Dict[str, Node] = {}
        for key, value in self._unique(node, path):
            field_path = join(path, key.scalar)
            field = message.DESCRIPTOR.fields_by_name.get(key.scalar)
            if field is None:
                self._fail(key.line, field_path, no_such_field(key.scalar, message.DESCRIPTOR, self._root))
                continue
            oneof = real_oneof(field)
            if oneof is not None:
                first = members.setdefault(oneof.name, key)
                if first is not key:
                    on = f", on line {first.line}" if first.line else ""
                    self._fail(key.line, field_path, f"only one of its kind may be set, and {first.scalar} is{on}")
                    continue
            self.lines.setdefault(field_path, key.line)
            self.read_field(value, key.line, field_path, field, message)

    def read_field(self, node: Node, line: int, path: str, field: FieldDescriptor, message: Any) -> None:
        repeated = is_repeated(field)
        if node.kind == "null":
            single = field.message_type is not None and not repeated
            return self._fail(line, path, "null is no value; write {} for an empty one, or leave the field out" if single else
                              "null is no value; leave the field out for its default")
        if not repeated:
            return self._read_single(node, path, field, message)
        wanted = "map" if is_map(field) else "list"
        if node.kind != wanted:
            is_window = field.full_name in _WINDOW_FIELDS
            if is_window and node.kind == "scalar" and looks_like_number(node.scalar):
                return self._store(node, path, field, getattr(message, field.name).append)
            wrap = "; write it in [ ]" if node.kind == "scalar" and wanted == "list" and not is_window else ""
            expected = "number or a list of numbers" if is_window else wanted
            return self._fail(node.line, path, f"expected a {expected}, got {node.describe()}{wrap}")
        if wanted == "map":
            for key, value in self._unique(node, path):
                self.add_entry(key, value, path, field, message)
            return
        for index, value in enumerate(node.values):
            self.add_element(value, f"{path}[{index}]", field, message)

    def add_element(self, node: Node, path: str, field: FieldDescriptor, message: Any) -> None:
        self.lines.setdefault(path, node.line)
        if node.kind == "null":
            return self._fail(node.line, path, "null is no value")
        target = getattr(message, field.name)
        if field.message_type is not None:
            self._read_value(node, path, target.add())
        else:
            self._store(node, path, field, target.append)

    def add_entry(self, key: Node, value: Node, path: str, field: FieldDescriptor, message: Any) -> None:
        entry_path = join(path, key.scalar)
        self.lines.setdefault(entry_path, key.line)
        if value.kind == "null":
            return self._fail(key.line, entry_path, "null is no value")
        entry = field.message_type.fields_by_name
        # A key needs no quotes to be a string.
        text_key = entry["key"].cpp_type == FieldDescriptor.CPPTYPE_STRING
        name = Node("scalar", key.line, key.plain and not text_key, key.scalar)
        keys: List[Any] = []
        self._store(name, entry_path, entry["key"], keys.append)
        if not keys:
            return
        target = getattr(message, field.name)
        if entry["value"].message_type is not None:
            target[keys[0]].Clear()
            self._read_value(value, entry_path, target[keys[0]])
        else:
            self._store(value, entry_path, entry["value"], lambda scalar: target.__setitem__(keys[0], scalar))

    def _read_single(self, node: Node, path: str, field: FieldDescriptor, message: Any) -> None:
        if field.message_type is None:
            return self._store(node, path, field, lambda value: setattr(message, field.name, value))
        child = getattr(message, field.name)
        child.SetInParent()
        self._read_value(node, path, child)

    def _read_value(self, node: Node, path: str, message: Any) -> None:
        readers: Dict[str, Callable[[Node, str, Any], None]] = {
            "google.protobuf.Value": self._read_free, "google.protobuf.ListValue": self._read_free_list,
            "google.protobuf.Struct": self._read_free_map, "google.protobuf.Timestamp": self._read_time}
        readers.get(message.DESCRIPTOR.full_name, self.read_message)(node, path, message)

    def _read_time(self, node: Node, path: str, message: Any) -> None:
        try:
            if node.kind != "scalar":
                raise ValueError
            message.FromJsonString(node.scalar)
        except ValueError:
            self._fail(node.line, path, f"expected a time such as 2026-01-31T12:00:00Z, got {node.describe()}")

    def _read_free(self, node: Node, path: str, message: Any) -> None:
        if node.kind == "null":
            message.null_value = 0
        elif node.kind == "list":
            self._read_free_list(node, path, message.list_value)
        elif node.kind == "map":
            self._read_free_map(node, path, message.struct_value)
        elif node.plain and node.scalar.lower() in ("true", "false"):
            message.bool_value = node.scalar.lower() == "true"
        elif node.plain and looks_like_number(node.scalar):
            self._read_free_number(node, path, message)
        else:
            message.string_value = node.scalar

    def _read_free_number(self, node: Node, path: str, message: Any) -> None:
        number = float(node.scalar)
        if not math.isfinite(number):
            self._fail(node.line, path, f"{node.describe()} is out of range")
        elif node.scalar.lstrip("+-").isdigit() and abs(int(node.scalar)) > _EXACT:
            self._fail(node.line, path, f'{node.describe()} is not kept exactly beyond 2^53; write "{node.scalar}" in quotes')
        else:
            message.number_value = number

    def _read_free_list(self, node: Node, path: str, message: Any) -> None:
        message.SetInParent()
        if node.kind != "list":
            return self._fail(node.line, path, f"expected a list, got {node.describe()}")
        for index, value in enumerate(node.values):
            self._read_free(value, f"{path}[{index}]", message.values.add())

    def _read_free_map(self, node: Node, path: str, message: Any) -> None:
        message.SetInParent()
        if node.kind != "map":
            return self._fail(node.line, path, f"expected a map, got {node.describe()}")
        for key, value in self._unique(node, path):
            self.lines.setdefault(join(path, key.scalar), key.line)
            self._read_free(value, join(path, key.scalar), message.fields[key.scalar])

    def _unique(self, node: Node, path: str) -> Iterator[Tuple[Node, Node]]:
        seen: Dict[str, int] = {}
        for key, value in zip(node.keys, node.values):
            if key.scalar in seen:
                self._fail(key.line, join(path, key.scalar), f"duplicate key, first on line {seen[key.scalar]}")
                continue
            seen[key.scalar] = key.line
            yield key, value

    def _store(self, node: Node, path: str, field: FieldDescriptor, put: Callable[[Any], object]) -> None:
        try:
            put(_scalar(node, field))
        except _Wrong as error:
            self._fail(node.line, path, str(error))

    def _fail(self, line: int, path: str, what: str) -> None:
        self.errors.append((line, path, what))


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def real_oneof(field: FieldDescriptor) -> Any:
    """The oneof that a field is a member of; not the one that an `optional` field makes."""
    oneof = field.containing_oneof
    return None if oneof is None or oneof.name == f"_{field.name}" else oneof


def is_repeated(field: FieldDescriptor) -> bool:
    """Of maps too. protobuf before 6.31 tells it by the label alone, 7.34 and later without one."""
    known = getattr(field, "is_repeated", None)
    return field.label == FieldDescriptor.LABEL_REPEATED if known is None else known


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def no_such_field(name: str, descriptor: Descriptor, root: Optional[Descriptor] = None) -> str:
    own = _OWN_NAMES.get(name.lower(), name.replace("-", "_"))
    near = [own] if own in descriptor.fields_by_name else difflib.get_close_matches(name, list(descriptor.fields_by_name), 1, 0.6)
    found = near[0] if near else _beneath(own, descriptor)
    if found is None and root is not None:
        found = _in_any_kind(own, root)
    if name == "betas" and found and found.endswith("beta1"):
        found += " and beta2"
    return f"no such field; did you mean {found}?" if found else "no such field"


def _beneath(name: str, descriptor: Descriptor) -> Optional[str]:
    queue = collections.deque([(descriptor, "")])
    seen: Set[str] = {descriptor.full_name}
    while queue:
        here, path = queue.popleft()
        if name in here.fields_by_name:
            return path + name
        for field in here.fields:
            single = field.message_type is not None and not is_repeated(field)
            if single and field.message_type.full_name not in seen:
                seen.add(field.message_type.full_name)
                queue.append((field.message_type, f"{path}{field.name}."))
    return None


def _in_any_kind(name: str, root: Descriptor) -> Optional[str]:
    """As _beneath, but where several kinds of a thing have the field, "<kind>" for the one in the path."""
    path = (_beneath(name, root) or "").split(".")
    if len(path) < 2:
        return path[0] or None
    here = root
    for step in path[:-2]:
        here = here.fields_by_name[step].message_type
    oneof = real_oneof(here.fields_by_name[path[-2]])
    kinds = [one for one in oneof.fields if one.message_type and name in one.message_type.fields_by_name] if oneof else []
    if oneof is not None and len(kinds) > 1:
        path[-2] = f"<{oneof.name}>"
    return ".".join(path)


def _scalar(node: Node, field: FieldDescriptor) -> Any:
    if field.cpp_type in _INTEGERS:
        return _integer(node, *_INTEGERS[field.cpp_type])
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return _number(node, field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if node.kind == "scalar" and node.plain and node.scalar.lower() in ("true", "false"):
            return node.scalar.lower() == "true"
        raise _Wrong(f"expected true or false, got {node.describe()}")
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _enum(node, field.enum_type)
    return _bytes(node) if field.type == FieldDescriptor.TYPE_BYTES else _string(node)


def _integer(node: Node, low: int, high: int) -> int:
    text = node.scalar
    digits = text[1:] if text[:1] in ("-", "+") else text
    value: Optional[int] = None
    if node.kind == "scalar" and digits.isascii() and digits.isdigit():
        if len(digits) > 1 and digits[0] == "0":
            raise _Wrong(f"expected an integer, got {node.describe()}; leading zeros are ambiguous")
        value = int(text)
    elif node.kind == "scalar" and looks_like_number(text) and float(text).is_integer() and abs(float(text)) <= _EXACT:
        value = int(float(text))
    elif node.kind != "scalar" or not looks_like_number(text) or not math.isinf(float(text)) and not float(text).is_integer():
        raise _Wrong(f"expected an integer, got {node.describe()}")
    if value is None or not low <= value <= high:
        raise _Wrong(f"{node.describe()} is out of range, {low} to {high}")
    return value


def _number(node: Node, single: bool) -> float:
    if node.kind == "scalar" and node.scalar in _SPECIAL:
        return _SPECIAL[node.scalar]
    if node.kind != "scalar" or not looks_like_number(node.scalar):
        raise _Wrong(f"expected a number, got {node.describe()}")
    value = float(node.scalar)
    if math.isinf(value) or single and abs(value) > _FLOAT_MAX:
        raise _Wrong(f"{node.describe()} is out of range")
    return value


def _string(node: Node) -> str:
    if node.kind != "scalar":
        raise _Wrong(f"expected a string, got {node.describe()}")
    if node.plain and (node.scalar.lower() in ("true", "false") or looks_like_number(node.scalar)):
        raise _Wrong(f'expected a string, got {node.describe()}; write "{node.scalar}" in quotes')
    return node.scalar


def _bytes(node: Node) -> bytes:
    if node.kind == "scalar":
        text = node.scalar.rstrip("=").replace("-", "+").replace("_", "/")
        try:
            return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):
            pass
    raise _Wrong(f"expected base64, got {node.describe()}")


def _enum(node: Node, kind: EnumDescriptor) -> int:
    if node.kind == "scalar":
        for value in kind.values:
            if node.scalar.lower() == value.name.lower() or node.plain and node.scalar == str(value.number):
                return int(value.number)
    # The zero value says "not given": nobody means it.
    names = [value.name for value in kind.values if value.number != 0]
    among = f"one of {', '.join(names)}"
    if node.kind != "scalar":
        raise _Wrong(f"expected {among}, got {node.describe()}")
    dtype = _DTYPES.get(node.scalar.lower())
    near = [dtype] if dtype in names else difflib.get_close_matches(node.scalar.upper(), names, 1, 0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise _Wrong(f'no such value "{node.scalar}"{hint} ({among})')


def copy_of(message: protobuf.Message) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
