"""Whole ONNX models against PyTorch in float64: onnx_models_test.py ONNX_NODE_TEST FOLDER.

Every model of FOLDER is run on random inputs by a small evaluator here, in float64; model, inputs and outputs become a
backend test, which ONNX_NODE_TEST runs. Exit code 77 where torch, protoc, ONNX's messages or FOLDER is missing.
"""

import os
import shutil
import subprocess
import sys
import tempfile

PROTO = "/usr/include/onnx/onnx.proto"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


try:
    import numpy as np
    import torch
except ImportError as error:
    skip(str(error))


def load_messages(folder):
    """ONNX's protobuf classes, made by protoc."""
    if shutil.which("protoc") is None or not os.path.exists(PROTO):
        skip("protoc or ONNX's onnx.proto is not installed")
    subprocess.run(["protoc", f"-I{os.path.dirname(PROTO)}", f"--python_out={folder}", PROTO], check=True)
    sys.path.insert(0, folder)
    try:
        import onnx_pb2
    except ImportError as error:
        skip(str(error))
    return onnx_pb2


def array_of(tensor):
    types = {1: ("<f4", "float_data"), 6: ("<i4", "int32_data"), 7: ("<i8", "int64_data")}
    dtype, field = types[tensor.data_type]
    data = np.frombuffer(tensor.raw_data, dtype) if tensor.raw_data else np.array(getattr(tensor, field), dtype)
    return data.reshape(tuple(tensor.dims))


def attributes_of(node):
    def value(a):
        return {1: a.f, 2: a.i, 3: a.s.decode(), 4: a.t, 6: list(a.floats), 7: list(a.ints)}[a.type]

    return {a.name: value(a) for a in node.attribute}


def tensor_of(array):
    t = torch.from_numpy(np.array(array))
    return t.double() if t.is_floating_point() else t


def padded(x, pads, value=0.0):
    """`pads` as ONNX has them: all begins, then all ends, of the last axes."""
    axes = len(pads) // 2
    flat = []
    for a in reversed(range(axes)):
        flat += [pads[a], pads[axes + a]]
    return torch.nn.functional.pad(x, flat, value=value)


def conv(x, w, b=None, *, strides, pads, dilations, group, **_):
    return torch.nn.functional.conv2d(padded(x, pads), w, b, strides, 0, dilations, group)


def batch_norm(x, scale, bias, mean, var, *, epsilon, **_):
    return torch.nn.functional.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)


OPERATIONS = {
    "Add": lambda a, b: a + b,
    "AveragePool": lambda x, *, kernel_shape, pads, strides: torch.nn.functional.avg_pool2d(
        padded(x, pads), kernel_shape, strides),
    "BatchNormalization": batch_norm,
    "Concat": lambda *parts, axis: torch.cat(parts, axis),
    "Constant": lambda *, value: tensor_of(array_of(value)),
    "Conv": conv,
    "Flatten": lambda x, *, axis: x.flatten(axis),
    "Gather": lambda x, i, *, axis: x[i] if axis == 0 else x.index_select(axis, i),
    "Gemm": lambda a, b, c, *, alpha, beta, transB: alpha * a @ (b.T if transB else b) + beta * c,
    "LogSoftmax": lambda x, *, axis: torch.log_softmax(x, axis),
    "Pad": lambda x, *, mode, pads, value: padded(x, pads, value),
    "Relu": torch.relu,
    "Reshape": lambda x, shape: x.reshape(tuple(shape.tolist())),
    "Shape": lambda x: torch.tensor(x.shape),
    "Tanh": torch.tanh,
    "Unsqueeze": lambda x, *, axes: x.unsqueeze(axes[0]),
}


def evaluate(model, inputs):
    values = {t.name: tensor_of(array_of(t)) for t in model.graph.initializer}
    values.update((name, tensor_of(array)) for name, array in inputs.items())
    for node in model.graph.node:
        operands = [values[name] for name in node.input]
        values[node.output[0]] = OPERATIONS[node.op_type](*operands, **attributes_of(node))
    return [values[info.name].numpy().astype(np.float32) for info in model.graph.output]


def write_tensor(messages, path, array):
    tensor = messages.TensorProto(dims=array.shape, data_type=1, raw_data=array.astype("<f4").tobytes())
    with open(path, "wb") as file:
        file.write(tensor.SerializeToString())


def write_case(messages, source, folder, random):
    with open(source, "rb") as file:
        raw = file.read()
    model = messages.ModelProto.FromString(raw)
    initialized = {t.name for t in model.graph.initializer}
    os.makedirs(os.path.join(folder, "test_data_set_0"))
    with open(os.path.join(folder, "model.onnx"), "wb") as file:
        file.write(raw)
    inputs = {}
    for info in model.graph.input:
        if info.name in initialized:
            continue
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        inputs[info.name] = random.standard_normal(shape).astype(np.float32)
        write_tensor(messages, f"{folder}/test_data_set_0/input_{len(inputs) - 1}.pb", inputs[info.name])
    for i, output in enumerate(evaluate(model, inputs)):
        write_tensor(messages, f"{folder}/test_data_set_0/output_{i}.pb", output)


def main():
    program, models = sys.argv[1:3]
    if not os.path.isdir(models):
        skip(f"{models} is not there")
    random = np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as folder:
        messages = load_messages(folder)
        cases = os.path.join(folder, "cases")
        for name in sorted(os.listdir(models)):
            if name.endswith(".onnx"):
                write_case(messages, os.path.join(models, name), f"{cases}/test_{name[:-5]}", random)
        result = subprocess.run([program, cases], stdout=subprocess.PIPE, text=True)
        print(result.stdout, end="")
        counts = result.stdout.strip().splitlines()[-1]
        sys.exit(0 if result.returncode == 0 and counts.endswith(" 0 skipped") else 1)


if __name__ == "__main__":
    main()
