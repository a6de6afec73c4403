"""What a job is submitted as: a job file, a dict or a JobSpec, with changes as `ampctl submit --set` makes them."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from google.protobuf.descriptor import FieldDescriptor

from ampd.errors import Error, FieldViolation, InvalidArgument, NotFound, invalid, make_error
from ampd.spec_reader import Reader, copy_of, is_map, is_repeated, no_such_field, real_oneof
from ampd.v1 import job_pb2
from ampd.yaml_tree import MAX_BYTES, Node, from_python, parse_yaml

#: A job file's path, its content as a dict, or the message itself.
SpecLike = Union[str, "os.PathLike[str]", Mapping[str, Any], job_pb2.JobSpec]
#: "train.epochs=2" as for ampctl, one or several, or {"train.epochs": 2}.
Sets = Union[str, Sequence[str], Mapping[str, Any]]

# Fields that exclude each other without being a oneof, as in proto/spec/alternatives.cc.
_ALTERNATIVES = {
    "ampd.v1.TrainSpec": [("epochs", "steps"), ("eval_every_epochs", "eval_every_steps")],
    "ampd.v1.OptimizerSpec": [("clip_global_norm", "clip_value")],
    "ampd.v1.CsvDataset": [("label", "targets")],
    "ampd.v1.WavFolderDataset": [("transcripts", "transcript_by_prefix")],
}


@dataclasses.dataclass
class Spec:
    """A spec that was read, and where it says what."""

    message: job_pb2.JobSpec
    #: Name of the file; empty where there is none.
    name: str = ""
    #: Where relative paths of the file start.
    folder: str = "."
    lines: Dict[str, int] = dataclasses.field(default_factory=dict)
    set_paths: List[str] = dataclasses.field(default_factory=list)

    def folder_of(self, path: str) -> str:
        """Where a relative path in the field at `path` starts: a field that was set is relative to the current folder."""
        return "." if self._set_of(path) else self.folder

    def explain(self, error: Error) -> Error:
        """The server's error with the lines of the file that its fields stand on."""
        if not error.violations:
            return error
        located = [dataclasses.replace(one, location=self._location(one.field)) for one in error.violations]
        return make_error(error.code, error.message, located, error.retry_after)

    def located(self, warning: str) -> str:
        """A server's warning (ModelPlan.warnings), which begins with the field's path, with where the file says it."""
        field, colon, what = warning.partition(": ")
        return str(FieldViolation(field, what, self._location(field))) if colon else warning

    def _set_of(self, path: str) -> Optional[str]:
        within = [one for one in self.set_paths if path == one or path.startswith((one + ".", one + "["))]
        return within[-1] if within else None

    def _location(self, path: str) -> str:
        was_set = self._set_of(path)
        if was_set is not None:
            return f"set {was_set}"
        here = path
        while here and self.name:
            if self.lines.get(here):
                return f"{self.name}:{self.lines[here]}"
            here = here[: max(here.rfind("."), here.rfind("["), 0)]
        return self.name


def read_spec(spec: SpecLike, sets: Sets = ()) -> Spec:
    """InvalidArgument, one violation a field, for what no job file may say; NotFound when there is no such file."""
    if isinstance(spec, job_pb2.JobSpec):
        read = Spec(copy_of(spec))
    elif isinstance(spec, Mapping):
        read = _read_tree(from_python(spec), "")
    else:
        read = _read_file(os.fspath(spec))
    for path, node in _assignments(sets):
        read.message = _with(read.message, path, node)
        read.set_paths.append(path)
    swept = set(read.message.sweep.grid).union(*(point.fields for point in read.message.sweep.list))
    for path in read.set_paths:
        # A point would take its place in turn, without a word.
        excluded, _ = _excluded_by(path, read.message)
        if excluded in swept:
            raise invalid([FieldViolation(path, f"the sweep gives {excluded}, which excludes it")])
    _clear_replaced(read.set_paths, read.message)
    return read


def _read_file(path: str) -> Spec:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise invalid([FieldViolation("", "not UTF-8 text", f"{path}:{line}")]) from error
    read = _read_tree(parse_yaml(text, path), path)
    read.folder = os.path.dirname(path) or "."
    return read


def _read_tree(tree: Node, name: str) -> Spec:
    reader = Reader()
    message = job_pb2.JobSpec()
    if tree.kind != "null":
        reader.read_message(tree, "", message)
    reader.check(name)
    return Spec(message, name, lines=reader.lines)


def _assignments(sets: Sets) -> Iterable[Tuple[str, Node]]:
    if isinstance(sets, Mapping):
        return [(path, from_python(value)) for path, value in sets.items()]
    listed = [sets] if isinstance(sets, str) else list(sets)
    pairs = []
    for assignment in listed:
        path, equals, value = assignment.partition("=")
        if not path or not equals:
            raise InvalidArgument(f"set {assignment}: expected PATH=VALUE")
        pairs.append((path, parse_yaml(value, f"set {path}")))
    return pairs


def _with(message: Any, path: str, node: Node) -> Any:
    # On a copy, so that an error halfway leaves no trace.
    changed = copy_of(message)
    _Setter(path, node).apply(changed, path)
    return changed


def _clear_replaced(paths: Sequence[str], message: Any) -> None:
    """Clears what the fields that were set take the place of, unless it was set too; see proto/spec/alternatives.h."""
    for path in paths:
        excluded, holder = _excluded_by(path, message)
        if excluded and not _are_named(excluded, paths):
            holder.ClearField(excluded.rpartition(".")[2])


def _excluded_by(path: str, message: Any) -> Tuple[str, Any]:
    """The path of the field that the one at `path` excludes, and the message that has both; "" where it excludes none, or is not set."""
    at, before, rest = message, "", path
    while at is not None:
        step, dot, rest = rest.partition(".")
        field = at.DESCRIPTOR.fields_by_name.get(step.partition("[")[0])
        other = None if field is None else _other_of(field)
        if other is not None and _is_set(at, field):
            return before + other, at
        at = _below(at, field, step) if dot and field is not None and other is None else None
        before += step + dot
    return "", None


def _other_of(field: FieldDescriptor) -> Optional[str]:
    for pair in _ALTERNATIVES.get(field.containing_type.full_name, []):
        if field.name in pair:
            return pair[1 - pair.index(field.name)]
    return None


def _is_set(message: Any, field: FieldDescriptor) -> bool:
    return any(one.name == field.name for one, _ in message.ListFields())


def _are_named(path: str, paths: Sequence[str]) -> bool:
    def within(one: str, outer: str) -> bool:
        return one == outer or one.startswith((outer + ".", outer + "["))
    return any(within(one, path) or within(path, one) for one in paths)


def _below(message: Any, field: FieldDescriptor, step: str) -> Any:
    if field.message_type is None or is_map(field) or not _is_set(message, field):
        return None
    child = getattr(message, field.name)
    if not is_repeated(field):
        return child
    index = re.fullmatch(r"[^\[]*\[([0-9]+)\]", step, re.A)
    return child[int(index[1])] if index and int(index[1]) < len(child) else None


class _Setter:
    """Walks to the field a path names, making the messages on the way, and puts a value there."""

    def __init__(self, path: str, node: Node) -> None:
        self._path = path
        self._node = node
        self._root: Any = None

    def apply(self, message: Any, rest: str) -> None:
        self._root = self._root or message.DESCRIPTOR
        step, dot, below = rest.partition(".")
        name, index = self._parse(step)
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise self._error(no_such_field(name, message.DESCRIPTOR, self._root))
        repeated = is_repeated(field)
        if index is not None and (not repeated or is_map(field)):
            raise self._error(f"{name} is not a list")
        if not dot:
            return self._set(message, field, index)
        if is_map(field):
            return self._set_entry(message, field, below)
        self._descend(message, field, index, below)

    def _parse(self, step: str) -> Tuple[str, Optional[int]]:
        match = re.fullmatch(r"([^\[]*)(?:\[([0-9]+)\])?", step, re.A)
        if match is None:
            raise self._error("a list index is written like layers[2]")
        return match[1], None if match[2] is None else int(match[2])

    def _descend(self, message: Any, field: FieldDescriptor, index: Optional[int], below: str) -> None:
        if field.message_type is None:
            raise self._error(f"{field.name} has no fields")
        if not is_repeated(field):
            self._check_oneof(message, field)
            child = getattr(message, field.name)
            child.SetInParent()
            return self.apply(child, below)
        if index is None:
            raise self._error(f"{field.name} is a list; name an element, such as [0]")
        elements = getattr(message, field.name)
        self._check_index(field, index, len(elements))
        self.apply(elements.add() if index == len(elements) else elements[index], below)

    def _check_oneof(self, message: Any, field: FieldDescriptor) -> None:
        # Going through another member of a oneof would silently drop the one that is set.
        oneof = real_oneof(field)
        is_set = oneof and message.WhichOneof(oneof.name)
        if is_set and is_set != field.name:
            raise self._error(f"{is_set} is set, and only one of its kind may be; set {field.name} as a whole to replace it")

    def _check_index(self, field: FieldDescriptor, index: int, size: int) -> None:
        if index > size:
            raise self._error(f"the list {field.name} has {size} elements")

    def _set(self, message: Any, field: FieldDescriptor, index: Optional[int]) -> None:
        reader = Reader()
        if index is not None:
            return self._set_element(message, field, index)
        message.ClearField(field.name)
        if self._node.kind != "null":
            reader.read_field(self._node, 0, self._path, field, message)
            self._check(reader)

    def _set_element(self, message: Any, field: FieldDescriptor, index: int) -> None:
        elements = getattr(message, field.name)
        size = len(elements)
        self._check_index(field, index, size)
        reader = Reader()
        reader.add_element(self._node, self._path, field, message)
        self._check(reader)
        if index < size:
            new = elements.pop()
            if field.message_type is not None:
                elements[index].CopyFrom(new)
            else:
                elements[index] = new

    def _set_entry(self, message: Any, field: FieldDescriptor, key: str) -> None:
        reader = Reader()
        parent = self._path[: len(self._path) - len(key) - 1]
        reader.add_entry(Node("scalar", plain=True, scalar=key), self._node, parent, field, message)
        self._check(reader)

    def _check(self, reader: Reader) -> None:
        if reader.errors:
            _, path, what = reader.errors[0]
            raise invalid([FieldViolation(path, what, f"set {self._path}")])

    def _error(self, what: str) -> InvalidArgument:
        return invalid([FieldViolation(self._path, what, "set")])
