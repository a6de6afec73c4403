"""Operations of ONNX against PyTorch in float64, values and gradients: torch_onnx_operations.py ONNX_NODE_TEST.

Each case is a small network of an operation, with the sum of its result times a weight and that sum's gradients
(Gradient of ai.onnx.preview.training) as outputs; ONNX_NODE_TEST runs it. Exit code 77 where torch, protoc or ONNX's
messages are missing.
"""

import os
import random as randoms
import subprocess
import sys
import tempfile

from onnx_models_test import load_messages, skip

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as error:
    skip(str(error))

TRAINING = "ai.onnx.preview.training"


class Case:
    """A network being written, with what PyTorch says of it."""

    def __init__(self, messages, random):
        self.messages = messages
        self.random = random
        self.model = messages.ModelProto(ir_version=8, producer_name="pytorch")
        self.model.opset_import.add(version=18)
        self.model.opset_import.add(domain=TRAINING, version=1)
        self.inputs = {}
        self.tensors = {}

    def input(self, name, shape):
        """Positive, so that sums keep their digits; differentiated."""
        array = self.random.uniform(0.5, 1.5, shape).astype(np.float32)
        self.inputs[name] = array
        self.tensors[name] = torch.from_numpy(array).double().requires_grad_()
        self._declare(self.model.graph.input, name, shape)
        return self.tensors[name]

    def constant(self, name, values):
        array = np.asarray(values)
        data_type, dtype = (7, "<i8") if array.dtype.kind == "i" else (1, "<f4")
        self.model.graph.initializer.add(
            name=name, dims=array.shape, data_type=data_type, raw_data=array.astype(dtype).tobytes())

    def node(self, op, inputs, output, domain="", **attributes):
        outputs = [output] if isinstance(output, str) else output
        node = self.model.graph.node.add(op_type=op, input=inputs, output=outputs, domain=domain)
        for name, value in attributes.items():
            a = node.attribute.add(name=name)
            if isinstance(value, str):
                a.type, a.s = 3, value.encode()
            elif isinstance(value, int):
                a.type, a.i = 2, value
            elif isinstance(value, float):
                a.type, a.f = 1, value
            elif value and isinstance(value[0], str):
                a.type = 8
                a.strings.extend(v.encode() for v in value)
            else:
                a.type = 7
                a.ints.extend(value)

    def write(self, folder, name, result):
        """`result` is what PyTorch gives for value `name`."""
        os.makedirs(os.path.join(folder, "test_data_set_0"))
        w = self.random.uniform(0.5, 1.5, tuple(result.shape)).astype(np.float32)
        self.constant("loss_weights", w)
        self.node("Mul", [name, "loss_weights"], "weighted")
        self.node("ReduceSum", ["weighted"], "loss", keepdims=0)
        (result * torch.from_numpy(w).double()).sum().backward()
        names = list(self.inputs)
        grads = [f"d_{n}" for n in names]
        self.node("Gradient", names, grads, domain=TRAINING, xs=names, y="loss")
        expected = [result] + [self.tensors[n].grad for n in names]
        for i, n in enumerate(names):
            self._tensor(f"{folder}/test_data_set_0/input_{i}.pb", self.inputs[n])
        for i, (n, value) in enumerate(zip([name] + grads, expected)):
            array = value.detach().numpy().astype(np.float32)
            self._declare(self.model.graph.output, n, array.shape)
            self._tensor(f"{folder}/test_data_set_0/output_{i}.pb", array)
        with open(os.path.join(folder, "model.onnx"), "wb") as file:
            file.write(self.model.SerializeToString())

    def _declare(self, infos, name, shape):
        tensor = infos.add(name=name).type.tensor_type
        tensor.elem_type = 1
        tensor.shape.SetInParent()
        for extent in shape:
            tensor.shape.dim.add(dim_value=extent)

    def _tensor(self, path, array):
        tensor = self.messages.TensorProto(dims=array.shape, data_type=1, raw_data=array.astype("<f4").tobytes())
        with open(path, "wb") as file:
            file.write(tensor.SerializeToString())


def resize_attributes(mode, align, antialias):
    """As torch.onnx writes them."""
    if mode == "nearest":
        return {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if mode == "nearest-exact":
        return {"mode": "nearest", "coordinate_transformation_mode": "half_pixel",
                "nearest_mode": "round_prefer_ceil"}
    attributes = {"mode": "cubic" if mode == "bicubic" else "linear",
                  "coordinate_transformation_mode": "align_corners" if align else "pytorch_half_pixel"}
    if antialias:
        attributes.update(antialias=1, exclude_outside=1, coordinate_transformation_mode="half_pixel")
    if mode == "bicubic":
        # What PyTorch takes with antialiasing is Pillow's.
        attributes["cubic_coeff_a"] = -0.5 if antialias else -0.75
    return attributes


def resize(case, folder, pick):
    """Behind a convolution an image has another order in the engine than by itself."""
    flat = pick.random() < 0.2
    modes = ["nearest", "nearest-exact", "linear"] if flat else ["nearest", "nearest-exact", "bilinear", "bicubic"]
    mode = pick.choice(modes)
    exact = mode.startswith("nearest")
    align = False if exact else pick.random() < 0.5
    antialias = not flat and not exact and not align and pick.random() < 0.3
    spatial = 1 if flat else 2
    extents = [pick.randint(1, 7) for _ in range(spatial)]
    shape = [pick.randint(1, 3), pick.randint(1, 3)] + extents
    x, name = case.input("x", shape), "x"
    if not flat and pick.random() < 0.5:
        filters = case.input("filters", [pick.randint(1, 4), shape[1], 1, 1])
        case.node("Conv", ["x", "filters"], "c")
        x, name = F.conv2d(x, filters), "c"
    options = {} if exact else {"align_corners": align, "antialias": antialias}
    attributes = resize_attributes(mode, align, antialias)
    if pick.random() < 0.5:
        scales = [pick.choice([0.5, 1.0, 1.5, 2.0, 3.0]) for _ in extents]
        scales = [s if int(s * e) > 0 else 2.0 for s, e in zip(scales, extents)]
        case.constant("scales", np.array([1.0, 1.0] + scales))
        operands = [name, "", "scales"]
        # ONNX samples by the scale that was given, PyTorch where it is asked to.
        y = F.interpolate(x, scale_factor=scales, mode=mode, recompute_scale_factor=False, **options)
    else:
        sizes = [pick.randint(1, 12) for _ in extents]
        case.constant("sizes", np.array([shape[0], x.shape[1]] + sizes))
        operands = [name, "", "", "sizes"]
        y = F.interpolate(x, size=sizes, mode=mode, **options)
    if 1 in y.shape[2:] and not exact and not align:
        # There pytorch_half_pixel takes the first element, which PyTorch does not.
        attributes["coordinate_transformation_mode"] = "half_pixel"
    case.node("Resize", operands, "y", **attributes)
    case.write(folder, "y", y)


def equation(pick):
    """An equation of up to three operands, and their shapes."""
    extents = {label: pick.randint(1, 4) for label in "abcdefgh"}
    dots = [pick.randint(1, 3) for _ in range(pick.choice([0, 0, 0, 1, 2]))]
    labels = pick.sample("abcdefgh", pick.randint(1, 5))
    terms, shapes = [], []
    for _ in range(pick.choice([1, 2, 2, 2, 2, 3])):
        own = pick.sample(labels, pick.randint(0 if dots else 1, len(labels)))
        if len(own) < 4 and own and pick.random() < 0.15:
            own.insert(pick.randint(0, len(own)), pick.choice(own))
        # PyTorch's own rule: an extent of 1 is repeated; not on a diagonal.
        shape = [1 if own.count(label) == 1 and pick.random() < 0.1 else extents[label] for label in own]
        term = "".join(own)
        if dots:
            at = pick.randint(0, len(own))
            less = pick.randint(0, len(dots))
            term = term[:at] + "..." + term[at:]
            shape[at:at] = [1 if pick.random() < 0.2 else extent for extent in dots[less:]]
        terms.append(term)
        shapes.append(shape)
    text = ",".join(terms)
    there = sorted({c for c in text if c.isalpha()})
    if pick.random() < 0.8:
        result = pick.sample(there, pick.randint(0, len(there)))
        at = pick.randint(0, len(result))
        text += "->" + "".join(result[:at]) + ("..." if dots else "") + "".join(result[at:])
    return text, shapes


def einsum(case, folder, pick):
    text, shapes = equation(pick)
    operands = [case.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    case.node("Einsum", list(case.inputs), "y", equation=text)
    case.write(folder, "y", torch.einsum(text, *operands))


def topk(case, folder, pick):
    """The elements by TopK and by where it found them."""
    shape = [pick.randint(1, 5) for _ in range(pick.randint(1, 4))]
    axis, largest = pick.randrange(len(shape)), pick.random() < 0.7
    count = pick.randint(1, shape[axis])
    x = case.input("x", shape)
    case.constant("k", np.array([count]))
    case.node("TopK", ["x", "k"], ["values", "places"], axis=axis, largest=int(largest))
    case.node("GatherElements", ["x", "places"], "again", axis=axis)
    case.node("Mul", ["values", "again"], "y")
    case.write(folder, "y", torch.topk(x, count, axis, largest).values ** 2)


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        messages = load_messages(folder)
        cases = os.path.join(folder, "cases")
        for kind, count in ((resize, 300), (einsum, 400), (topk, 60)):
            for i in range(count):
                name = f"{cases}/test_{kind.__name__}_{i}"
                kind(Case(messages, np.random.default_rng(i)), name, randoms.Random(i))
        result = subprocess.run([program, cases], stdout=subprocess.PIPE, text=True)
        lines = result.stdout.strip().splitlines()
        print("\n".join(line for line in lines if not line.startswith("pass")))
        sys.exit(0 if result.returncode == 0 and lines[-1].endswith(" 0 skipped") else 1)


if __name__ == "__main__":
    main()
