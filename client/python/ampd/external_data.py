"""ONNX models whose tensors lie in files beside the model's (TensorProto.external_data), as PyTorch's exporter writes net.onnx and
net.onnx.data: joined to one file, as `ampctl submit` does. Messages are walked as bytes, so that no ONNX package is needed."""

from __future__ import annotations

import os
from typing import Dict, Iterator, List, Optional, Tuple, Union

from ampd.errors import InvalidArgument

_MOST_BYTES = 2**31 - 1
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
# Message: the fields that lead to tensors, by number.
_INNER: Dict[str, Dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
}
_NAME, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 8, 9, 13, 14
_EXTERNAL = 1

_Field = Tuple[int, int, Union[int, memoryview], memoryview]


class _NoMessage(Exception):
    pass


def join_external_data(path: str) -> Optional[bytes]:
    """The model at `path` as one file; None where it needs no other, and for what is no ONNX model. What lies in files that are not
    there stays so, for the server to refuse if it is needed. InvalidArgument for a file outside the model's folder, one that ends
    too early, and 2 GiB and more."""
    if os.path.getsize(path) > _MOST_BYTES:
        return None
    with open(path, "rb") as file:
        model = file.read()
    joiner = _Joiner(path, len(model))
    try:
        joined = b"".join(joiner.message("model", memoryview(model)))
    except _NoMessage:
        return None
    if joiner.found and len(joined) > _MOST_BYTES:
        raise InvalidArgument(f"{path}: {len(joined)} bytes with what lies in other files, at most {_MOST_BYTES} can be read")
    return joined if joiner.found else None


class _Joiner:
    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.left = _MOST_BYTES - size
        self.found = False

    def message(self, kind: str, data: memoryview, depth: int = 0) -> Iterator[Union[bytes, memoryview]]:
        if depth > 100:
            raise _NoMessage
        if kind == "tensor":
            yield from self.tensor(data)
            return
        for number, wire, value, whole in _fields(data):
            inner = _INNER[kind].get(number)
            if inner is None or wire != _BYTES:
                yield whole
                continue
            assert isinstance(value, memoryview)
            parts = list(self.message(inner, value, depth + 1))
            yield _head(number, sum(len(part) for part in parts))
            yield from parts

    def tensor(self, data: memoryview) -> Iterator[Union[bytes, memoryview]]:
        fields = list(_fields(data))
        if not any(number == _DATA_LOCATION and value == _EXTERNAL for number, _, value, _ in fields):
            yield data
            return
        name = next((bytes(value).decode("utf-8", "replace") for number, _, value, _ in fields
                     if number == _NAME and isinstance(value, memoryview)), "")
        entries = dict(_entry(value) for number, _, value, _ in fields if number == _EXTERNAL_DATA and isinstance(value, memoryview))
        raw = self.read(name, entries)
        if raw is None:
            yield data
            return
        self.found = True
        yield from (whole for number, _, _, whole in fields if number not in (_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION))
        yield _head(_RAW_DATA, len(raw))
        yield raw

    def read(self, name: str, entries: Dict[str, str]) -> Optional[bytes]:
        location = entries.get("location", "")

        def bad(what: str) -> InvalidArgument:
            return InvalidArgument(f"{self.path}: tensor {name!r} lies in {location!r}, {what}")

        if not location or location.startswith("/") or "\0" in location or ".." in location.split("/"):
            raise bad("which is no path within the model's folder")
        numbers = {}
        for key in ("offset", "length"):
            text = entries.get(key, "0")
            if not (text.isascii() and text.isdigit()):
                raise bad(f"with {key} {text!r}")
            numbers[key] = int(text)
        folder = os.path.dirname(os.path.abspath(self.path))
        file = os.path.realpath(os.path.join(folder, location))
        if not os.path.isfile(file):
            return None
        # It is sent, and a model from elsewhere could ask for any file by a link. In caches of models the model is a link itself.
        home = os.path.realpath(folder)
        if os.path.commonpath([home, file]) != home and os.path.dirname(file) != os.path.dirname(os.path.realpath(self.path)):
            raise bad("which leads out of the model's folder")
        size, offset = os.path.getsize(file), numbers["offset"]
        length = numbers["length"] if "length" in entries else max(size - offset, 0)
        if offset + length > size:
            raise bad(f"which ends at byte {size}, before {length} bytes from byte {offset}")
        self.left -= length
        if self.left < 0:
            raise bad(f"with more than {_MOST_BYTES} bytes in all")
        try:
            with open(file, "rb") as stream:
                stream.seek(offset)
                raw = stream.read(length)
        except OSError as error:
            raise bad(f"which cannot be read: {error.strerror}") from error
        if len(raw) != length:
            raise bad("which cannot be read to its end")
        return raw


def _entry(data: memoryview) -> Tuple[str, str]:
    """A StringStringEntryProto."""
    texts = {number: bytes(value).decode("utf-8", "replace") for number, _, value, _ in _fields(data) if isinstance(value, memoryview)}
    return texts.get(1, ""), texts.get(2, "")


def _fields(data: memoryview) -> Iterator[_Field]:
    """Number, wire type, value and all bytes of each field."""
    at = 0
    while at < len(data):
        begin = at
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value: Union[int, memoryview]
        if wire == _VARINT:
            value, at = _varint(data, at)
        else:
            if wire == _BYTES:
                length, at = _varint(data, at)
            elif wire in _FIXED:
                length = _FIXED[wire]
            else:
                raise _NoMessage
            if number == 0 or length > len(data) - at:
                raise _NoMessage
            value = data[at:at + length]
            at += length
        yield number, wire, value, data[begin:at]


def _varint(data: memoryview, at: int) -> Tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise _NoMessage


def _head(number: int, length: int) -> bytes:
    out: List[int] = []
    for value in (number << 3 | _BYTES, length):
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)
