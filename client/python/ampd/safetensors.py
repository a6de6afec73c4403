"""The safetensors format with nothing but NumPy. Takes hostile bytes: whatever does not fit is DataLoss."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Mapping, Tuple

import numpy as np
import numpy.typing as npt

from ampd.errors import DataLoss, Unimplemented

_MAX_HEADER_BYTES = 100_000_000
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
           "U8": "|u1", "BOOL": "|b1"}


def parse(data: bytes, name: str = "safetensors") -> Dict[str, npt.NDArray[Any]]:
    """The tensors by name, in the order of the file, without a copy (read-only). BF16, which NumPy lacks, becomes float32,
    which has every value of it."""
    header, begin = _header(data, name)
    body = memoryview(data)[begin:]
    tensors = {}
    for tensor, entry in header.items():
        if tensor != "__metadata__":
            tensors[tensor] = _tensor(body, entry, f"{name}: {tensor}")
    return tensors


def metadata(data: bytes, name: str = "safetensors") -> Mapping[str, str]:
    """What the file says of itself."""
    found = _header(data, name)[0].get("__metadata__", {})
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise DataLoss(f"{name}: metadata is no map of strings")
    return found


def _header(data: bytes, name: str) -> Tuple[Dict[str, Any], int]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise DataLoss(f"{name}: is cut short, or no safetensors file")
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError) as error:
        raise DataLoss(f"{name}: its header is no JSON") from error
    if not isinstance(header, dict):
        raise DataLoss(f"{name}: its header is no map")
    return header, 8 + size


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _tensor(body: memoryview, entry: Any, what: str) -> npt.NDArray[Any]:
    if not isinstance(entry, dict):
        raise DataLoss(f"{what}: has no description")
    kind, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    well = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_size, shape + offsets))
    if not well or not isinstance(shape, list) or not isinstance(offsets, list):
        raise DataLoss(f"{what}: shape or data_offsets are not as they should be")
    if kind not in _DTYPES:
        raise Unimplemented(f"{what}: NumPy has no {kind}")
    begin, end = offsets
    dtype = np.dtype(_DTYPES[kind])
    if not begin <= end <= len(body) or end - begin != math.prod(shape) * dtype.itemsize:
        raise DataLoss(f"{what}: {end - begin} bytes at {begin} are not a {kind} of shape {shape}")
    array: npt.NDArray[Any] = np.frombuffer(body[begin:end], dtype).reshape(shape)
    return (array.astype("<u4") << np.uint32(16)).view("<f4") if kind == "BF16" else array
