"""Reads model.safetensors with nothing but NumPy."""

import json
import struct

import numpy as np


def read_safetensors(path):
    """{name: array} of a file in the safetensors format; BF16 as its bits."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64}[entry["dtype"]]
        tensors[name] = np.frombuffer(data[8 + size + begin:8 + size + end], dtype).reshape(entry["shape"])
    return tensors
