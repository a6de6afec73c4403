"""The peer of kernel_bench --sweep: products and convolutions in PyTorch, by the same names.

usage: torch_kernels.py NAME...   NAME: "matmul/4096x4096x4096/f16", "conv2d/64x56x56x64,3x3x64,1/tf32/f32" and so on, with
"_as_gradient" behind matmul and the names of a convolution's gradients. --device cpu|cuda

Prints a line of JSON for each name that it knows: {"name": ..., "seconds": median of a call}. Twenty calls are timed at a
time, on the same memory, as kernel_bench does. Convolutions are channels_last, and cuDNN chooses by measuring.
"""
import json
import re
import statistics
import sys
import time

import torch

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
CALLS, REPEATS = 20, 15


def timed(call, device):
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    calls, repeats = (CALLS, REPEATS) if device == "cuda" else (1, 1)
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)


def product(sizes, dtype, gradient, device):
    m, k, n = (int(x) for x in sizes.split("x"))
    a, b = torch.rand(m, k, device=device).to(dtype), torch.rand(k, n, device=device).to(dtype)
    c = torch.rand(m, n, device=device).to(dtype)
    if gradient == "_as_gradient":
        return lambda: torch.mm(c, b.t())
    if gradient == "_as_gradient_of_b":
        return lambda: torch.mm(a.t(), c)
    return lambda: torch.mm(a, b)


def convolution(sizes, dtype, gradient, device):
    image, window, stride = sizes.split(",")
    batch, size, _, channels = (int(x) for x in image.split("x"))
    kernel, _, filters = (int(x) for x in window.split("x"))
    stride, pad = int(stride), kernel // 2
    last = torch.channels_last
    x = torch.rand(batch, channels, size, size, device=device).to(dtype).to(memory_format=last)
    w = torch.rand(filters, channels, kernel, kernel, device=device).to(dtype).to(memory_format=last)
    if not gradient:
        return lambda: torch.conv2d(x, w, stride=stride, padding=pad)
    y = torch.conv2d(x, w, stride=stride, padding=pad)
    mask = [gradient == "input", gradient == "filter", False]
    return lambda: torch.ops.aten.convolution_backward(y, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask)


def call_of(name, device):
    """None where this has no peer."""
    match = re.fullmatch(r"([a-z0-9_]+)/([0-9x,]+)(/tf32)?/(f32|f16|bf16)", name)
    if not match:
        return None
    op, sizes, tf32, dtype = match.groups()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32 is not None
    if op.startswith("matmul"):
        return product(sizes, DTYPES[dtype], op[len("matmul"):], device)
    if op.startswith("conv2d") and "," in sizes:
        gradient = "input" if "input" in op else "filter" if "filter" in op or "weight" in op else ""
        return convolution(sizes, DTYPES[dtype], gradient, device) if gradient or op == "conv2d" else None
    return None


def main():
    device = "cpu" if "--device=cpu" in sys.argv else "cuda"
    torch.backends.cudnn.benchmark = True
    for name in sys.argv[1:]:
        call = None if name.startswith("--") else call_of(name, device)
        if call is None:
            continue
        try:
            print(json.dumps({"name": name, "seconds": timed(call, device)}), flush=True)
        except RuntimeError as error:
            print(json.dumps({"name": name, "error": str(error).splitlines()[0]}), flush=True)


if __name__ == "__main__":
    main()
