"""ONNX models whose tensors lie in files beside the model's (TensorProto.external_data), as PyTorch's exporter writes net.onnx and
net.onnx.data: joined to one file, as `ampctl submit` does. Messages are walked as bytes, so that no ONNX package is needed."""

from __future__ import annotations

import os
from typing import Dict, Iterator, List, Optional, Tuple, Union

from ampd.errors import InvalidArgument

_MOST_BYTES = 2**31 - 1
_PIECE_BYTES = 1 << 20
# Without it no tensor lies elsewhere.
_LOCATION = b"location"
_LONGEST_LOCATION = 4096
_LONGEST_NUMBER = 18
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
# As deep as protobuf's own parsers go.
_DEEPEST = 100
# Message: the fields that lead to tensors, by number.
_INNER: Dict[str, Dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
}
_NAME, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 8, 9, 13, 14
_EXTERNAL = 1

_Piece = Union[bytes, memoryview]


class _NoMessage(Exception):
    pass


def join_external_data(path: str) -> Optional[bytes]:
    """The model at `path` as one file; None where it needs no other, and for what is no ONNX model. What lies in files that are not
    there stays so, for the server to refuse if it is needed. InvalidArgument for hidden files and those outside the model's folder,
    for one that ends too early, and for 2 GiB and more."""
    size = os.path.getsize(path)
    if size > _MOST_BYTES or not _holds(path, _LOCATION):
        return None
    with open(path, "rb") as file:
        model = memoryview(file.read())
    try:
        joined = _Joiner(path, size).message("model", model, 0)
    except _NoMessage:
        return None
    if joined is None:
        return None
    total = sum(len(piece) for piece in joined)
    if total > _MOST_BYTES:
        raise InvalidArgument(f"{path}: {total} bytes with what lies in other files, at most {_MOST_BYTES} can be read")
    return b"".join(joined)


def _holds(path: str, key: bytes) -> bool:
    end = b""
    with open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            end += piece
            if key in end:
                return True
            end = end[-(len(key) - 1):]
    return False


class _Joiner:
    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.left = _MOST_BYTES - size

    def message(self, kind: str, data: memoryview, depth: int) -> Optional[List[_Piece]]:
        """What stands for `data`, in pieces; None: itself."""
        if depth > _DEEPEST:
            raise _NoMessage
        if kind == "tensor":
            return self.tensor(data)
        pieces: List[_Piece] = []
        done = 0
        for number, wire, begin, value, end in _fields(data):
            inner = _INNER[kind].get(number)
            if inner is None or wire != _BYTES:
                continue
            joined = self.message(inner, data[value:end], depth + 1)
            if joined is None:
                continue
            pieces += [data[done:begin], _head(number, sum(len(piece) for piece in joined)), *joined]
            done = end
        return [*pieces, data[done:]] if pieces else None

    def tensor(self, data: memoryview) -> Optional[List[_Piece]]:
        name, is_external = b"", False
        entries: Dict[bytes, bytes] = {}
        for number, wire, _, value, end in _fields(data):
            if number == _DATA_LOCATION and wire == _VARINT:
                is_external = _varint(data, value)[0] == _EXTERNAL
            elif number == _EXTERNAL_DATA and wire == _BYTES:
                key, text = _entry(data[value:end])
                entries[key] = text
            elif number == _NAME and wire == _BYTES:
                name = bytes(data[value:end])
        raw = self.read(name, entries) if is_external else None
        if raw is None:
            return None
        kept: List[_Piece] = [data[begin:end] for number, _, begin, _, end in _fields(data)
                              if number not in (_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION)]
        return [*kept, _head(_RAW_DATA, len(raw)), raw]

    def read(self, name: bytes, entries: Dict[bytes, bytes]) -> Optional[bytes]:
        location = entries.get(b"location", b"")

        def bad(what: str) -> InvalidArgument:
            shown = location[:60].decode("ascii", "backslashreplace")
            return InvalidArgument(f"{self.path}: tensor {name[:60].decode('ascii', 'backslashreplace')!r} lies in {shown!r}, {what}")

        parts = location.split(b"/")
        if not location or len(location) > _LONGEST_LOCATION or location.startswith(b"/") or b"\0" in location or b".." in parts:
            raise bad("which is no path within the model's folder")
        # What is read is sent, and a model from elsewhere could ask for any file of this machine.
        if any(part.startswith(b".") and part != b"." for part in parts):
            raise bad("which is hidden: such files are not sent")
        numbers = {}
        for key in (b"offset", b"length"):
            text = entries.get(key, b"0")
            if not text.isdigit() or len(text) > _LONGEST_NUMBER:
                raise bad(f"with {key.decode()} {text[:60].decode('ascii', 'backslashreplace')!r}")
            numbers[key] = int(text)
        folder = os.path.realpath(os.path.dirname(os.path.abspath(os.fsencode(self.path))))
        file = os.path.realpath(os.path.join(folder, location))
        try:
            os.stat(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise bad(f"which cannot be read: {error.strerror}") from error
        if os.path.commonpath([folder, file]) != folder:
            raise bad("which leads out of the model's folder: copy the files that links lead to (cp -L) and send the copies")
        if any(part.startswith(b".") for part in os.path.relpath(file, folder).split(b"/")):
            raise bad("which is hidden: such files are not sent")
        if not os.path.isfile(file):
            raise bad("which is no regular file")
        size, offset = os.path.getsize(file), numbers[b"offset"]
        length = numbers[b"length"] if b"length" in entries else max(size - offset, 0)
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


def _entry(data: memoryview) -> Tuple[bytes, bytes]:
    """A StringStringEntryProto."""
    texts = {number: bytes(data[value:end]) for number, wire, _, value, end in _fields(data) if wire == _BYTES}
    return texts.get(1, b""), texts.get(2, b"")


def _fields(data: memoryview) -> Iterator[Tuple[int, int, int, int, int]]:
    """Of each field its number, its wire type, where it begins, where its value does, and where both end."""
    at = 0
    while at < len(data):
        begin = at
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value = at
        if wire == _VARINT:
            _, at = _varint(data, at)
        else:
            if wire == _BYTES:
                length, at = _varint(data, at)
                value = at
            elif wire in _FIXED:
                length = _FIXED[wire]
            else:
                raise _NoMessage
            if length > len(data) - at:
                raise _NoMessage
            at += length
        if number == 0:
            raise _NoMessage
        yield number, wire, begin, value, at


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
