"""A small AC-GAN, and what its networks compute in evaluation: in NumPy, in float64, from the weights of a checkpoint."""

import numpy as np


def acgan_job(**fields):
    return {"name": "acgan", "seed": 3, "data": {"train": {"glyphs": {"samples": 64}}},
            "model": {"preset": {"acgan": {"size": 28, "channels": 1, "classes": 10, "noise": 8, "width": 4}}},
            "precision": {"mode": "FP32"}, "train": {"steps": 40, "batch_size": 8}, "resources": {"cpu_threads": 1},
            **fields}


def wide(weights):
    return {name: values.astype(np.float64) for name, values in weights.items()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def conv(x, weight, bias, stride):
    """Of images [n, c, h, w], with (kernel - 1) // 2 zeros around them."""
    kernel = weight.shape[-1]
    pads = (kernel - 1) // 2
    out = (x.shape[-1] + 2 * pads - kernel) // stride + 1
    x = np.pad(x, ((0, 0), (0, 0), (pads, pads), (pads, pads)))
    y = np.zeros((len(x), len(weight), out, out))
    for i in range(kernel):
        for j in range(kernel):
            seen = x[:, :, i:i + stride * (out - 1) + 1:stride, j:j + stride * (out - 1) + 1:stride]
            y += np.einsum("nchw,oc->nohw", seen, weight[:, :, i, j])
    return y + bias[:, None, None]


def conv_transpose(x, weight):
    """Kernel 4, stride 2, a pad of 1: twice the extents."""
    n, _, size, _ = x.shape
    y = np.zeros((n, weight.shape[1], 2 * size + 2, 2 * size + 2))
    for i in range(4):
        for j in range(4):
            y[:, :, i:i + 2 * size:2, j:j + 2 * size:2] += np.einsum("nchw,co->nohw", x, weight[:, :, i, j])
    return y[:, :, 1:-1, 1:-1]


def normalized(x, weights, name):
    """Batch norm by the running statistics."""
    shape = (1, -1) + (1,) * (x.ndim - 2)
    of = lambda what: weights[f"{name}.{what}"].reshape(shape)
    return (x - of("running_mean")) / np.sqrt(of("running_var") + 1e-5) * of("weight") + of("bias")


def drawings(weights, noise, labels):
    """Of network "generator", whose weights have no prefix: images [n, 1, 28, 28] in (0, 1)."""
    w = wide(weights)
    x = noise.astype(np.float64) * w["table.weight"][labels] @ w["project.weight"].T
    x = np.moveaxis(x.reshape(len(labels), 7, 7, -1), -1, 1)
    x = np.maximum(normalized(x, w, "bn0"), 0)
    for number in (1, 2):
        x = np.maximum(normalized(conv_transpose(x, w[f"up{number}.weight"]), w, f"bn{number}"), 0)
    return sigmoid(conv(x, w["paint.weight"], w["paint.bias"], 1))


def classes(weights, images):
    """Logits [n, 10] of networks "trunk" and "class" of real images [n, 1, 28, 28]."""
    w = wide(weights)
    x = images.astype(np.float64)
    for number, stride in (("1", 2), ("2", 2), ("3", 1)):
        x = conv(x, w[f"trunk.down{number}.weight"], w[f"trunk.down{number}.bias"], stride)
        x = np.where(x > 0, x, 0.2 * x)
    return x.reshape(len(x), -1) @ w["class.fc.weight"].T + w["class.fc.bias"]
