"""Writes the committed corpora anew: tests/fuzz/make_corpus.py FOLDER. Everything is made here or by the project's own
programs ($AMPD_BIN_DIR, and the generated messages on PYTHONPATH, as for the tests in tests/e2e); no data of others.
The pictures of corpus/jpeg were made with JpegFileBytes() of tests/unit/engine/data/image_files.h.
"""

import gzip
import io
import json
import os
import struct
import sys
import zlib

import numpy as np
from google.protobuf import json_format

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
import ampd_process  # noqa: E402
from ampd.v1 import job_pb2, plan_pb2, training_service_pb2, worker_link_pb2  # noqa: E402

RANDOM = np.random.default_rng(7)
EXAMPLES = os.path.join(ampd_process.SOURCE, "client/examples")


def parts(*files):
    """Several files as Parts() of input.h reads them."""
    sized = b"".join(struct.pack("<I", len(file)) + file for file in files[:-1])
    return sized + files[-1]


def idx(values):
    return b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def npy(values):
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def npz(save, **arrays):
    out = io.BytesIO()
    save(out, **arrays)
    return out.getvalue()


def random_bytes(*shape):
    return RANDOM.integers(0, 256, shape, np.uint8)


def arrays():
    images, labels = idx(random_bytes(3, 4, 5)), idx(np.array([2, 0, 1], np.uint8))
    yield "idx/plain", parts(images, labels)
    yield "idx/gzip", parts(gzip.compress(images, mtime=0), gzip.compress(labels, mtime=0))
    yield "idx/gzip-members", parts(gzip.compress(images[:20], mtime=0) + gzip.compress(images[20:], mtime=0), labels)
    floats = RANDOM.standard_normal((3, 4)).astype(np.float32)
    classes = np.array([2, 0, 1], np.int64)
    yield "npy/classes", parts(npy(floats), b"", npy(classes))
    yield "npy/halves", parts(npy(floats.astype(np.float16)), b"", npy(floats[:, :2].astype(np.float64)))
    yield "npy/images", parts(npy(random_bytes(3, 4, 4, 1)), b"", npy(classes.astype(np.uint8)))
    yield "npy/pixels", parts(npy(random_bytes(2, 3, 3)), b"", npy(RANDOM.integers(0, 4, (2, 3, 3)).astype(np.int16)))
    yield "npy/sequences", parts(npy(RANDOM.standard_normal((3, 5, 2)).astype(np.float32)),
                                 npy(np.array([5, 3, 1], np.int32)), npy(RANDOM.integers(0, 3, (3, 5)).astype(np.int32)))
    yield "npz/stored", npz(np.savez, x=floats, y=classes)
    yield "npz/deflated", npz(np.savez_compressed, x=floats, y=classes)
    yield "cifar/two", b"".join(bytes([label]) + random_bytes(48).tobytes() * 64 for label in (3, 9))
    yield "quickdraw/three", parts(npy(np.tile(random_bytes(3, 28), (1, 28))), npy(np.tile(random_bytes(4, 28), (1, 28))))


def tables():
    yield "csv/named", b"a,b,label\n1,2.5,0\n-3e2,.5,1\n\n4,5,2\n"
    yield "csv/quoted", b'\xef\xbb\xbf"a","b ""x""","label"\r\n"1",2,0\r\n3,"4",1\r\n'
    yield "csv/semicolons", b"a;b\n1;2\n3;nan\n"
    yield "csv/gzip", gzip.compress(b"a,label\n1,0\n2,1\n", mtime=0)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(colour, bits, row_bytes, extra=b"", interlace=0, side=5):
    rows = b"".join(bytes([y % 5]) + random_bytes(row_bytes).tobytes() for y in range(side))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, bits, colour, 0, 0, interlace)) + extra +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def pictures():
    yield "png/gray", png(0, 8, 5)
    yield "png/colour", png(2, 8, 15)
    yield "png/alpha16", png(6, 16, 40)
    yield "png/palette", png(3, 2, 2, chunk(b"PLTE", bytes(range(12))) + chunk(b"tRNS", b"\0\x80"))
    yield "png/interlaced", png(0, 8, 1, interlace=1, side=1)


def riff(format_tag, bits, samples, channels=1, extra=b""):
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", format_tag, channels, 8000, 8000 * block, block, bits) + extra
    data = b"LIST" + struct.pack("<I", 3) + b"abc\0" + b"data" + struct.pack("<I", len(samples)) + samples
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def sounds():
    yield "wav/pcm8", riff(1, 8, random_bytes(9).tobytes())
    yield "wav/pcm16", riff(1, 16, random_bytes(16).tobytes(), channels=2)
    yield "wav/pcm24", riff(1, 24, random_bytes(12).tobytes())
    yield "wav/float", riff(3, 32, RANDOM.standard_normal(5).astype(np.float32).tobytes())
    guid = struct.pack("<HHIH", 22, 16, 4, 1) + bytes.fromhex("000000001000800000aa00389b71")
    yield "wav/extensible", riff(0xfffe, 16, random_bytes(8).tobytes(), extra=guid)


def safetensors(**tensors):
    header, data = {}, b""
    for name, (code, values) in tensors.items():
        header[name] = {"dtype": code, "shape": list(values.shape), "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensors():
    floats = RANDOM.standard_normal((3, 4)).astype(np.float32)
    yield "safetensors/classes", safetensors(x=("F32", floats), y=("I64", np.array([0, 2, 1])))
    yield "safetensors/halves", safetensors(x=("BF16", random_bytes(3, 4).astype(np.uint16)), y=("F16", floats.astype(np.float16)))
    yield "safetensors/bytes", safetensors(x=("U8", random_bytes(2, 3, 3)), y=("I32", np.array([1, 0], np.int32)))
    yield "safetensors/empty", struct.pack("<Q", 2) + b"{}"


def varint(value):
    out = b""
    value &= (1 << 64) - 1
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    """A field of a message in protobuf's wire form: a number, or bytes, a string or a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(name, value):
    """An ONNX AttributeProto of an integer or a list of them."""
    if isinstance(value, int):
        return field(1, name) + field(3, value) + field(20, 2)
    return field(1, name) + b"".join(field(8, v) for v in value) + field(20, 7)


def node(op, inputs, outputs, **attributes):
    return field(1, b"".join(field(1, i) for i in inputs) + b"".join(field(2, o) for o in outputs) + field(4, op) +
                 b"".join(field(5, attribute(*item)) for item in attributes.items()))


def value(number, name, *shape):
    dims = b"".join(field(1, field(1, n)) for n in shape)
    return field(number, field(1, name) + field(2, field(1, field(1, 1) + field(2, dims))))


def initializer(name, values):
    code = {np.dtype(np.float32): 1, np.dtype(np.int64): 7}[values.dtype]
    dims = b"".join(field(1, n) for n in values.shape)
    return field(5, dims + field(2, code) + field(8, name) + field(9, values.tobytes()))


def elsewhere(name, offset, length, *shape):
    """An initializer whose data lie in another file."""
    entries = (("location", "parts/w.data"), ("offset", str(offset)), ("length", str(length)))
    return field(5, b"".join(field(1, n) for n in shape) + field(2, 1) + field(8, name) +
                 b"".join(field(13, field(1, key) + field(2, text)) for key, text in entries) + field(14, 1))


def model(*graph):
    return field(1, 8) + field(7, b"".join(graph) + field(2, "g")) + field(8, field(2, 17))


def weights(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def networks():
    yield "onnx/dense", model(
        node("Gemm", ["x", "w", "b"], ["h"], transB=1), node("Relu", ["h"], ["r"]), node("Softmax", ["r"], ["y"], axis=1),
        initializer("w", weights(3, 4)), initializer("b", weights(3)), value(11, "x", 2, 4), value(12, "y", 2, 3))
    yield "onnx/convolution", model(
        node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], group=1),
        node("BatchNormalization", ["c", "s", "s", "m", "v"], ["n"]),
        node("MaxPool", ["n"], ["p"], kernel_shape=[2, 2], strides=[1, 1], ceil_mode=1),
        node("GlobalAveragePool", ["p"], ["g"]), node("Flatten", ["g"], ["y"]),
        initializer("w", weights(2, 1, 3, 3)), initializer("s", weights(2)), initializer("m", weights(2)),
        initializer("v", np.abs(weights(2))), value(11, "x", 1, 1, 5, 5), value(12, "y", 1, 2))
    yield "onnx/shapes", model(
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "i"], ["d"], axis=0), node("Concat", ["d", "t"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["r"]), node("Transpose", ["r"], ["q"], perm=[1, 0]),
        node("Slice", ["q", "i", "t", "i"], ["l"]), node("ReduceMean", ["l"], ["y"], axes=[0], keepdims=0),
        initializer("i", np.array([0])), initializer("t", np.array([2])), value(11, "x", 2, 2), value(12, "y", 2))
    yield "onnx/recurrent", model(
        node("LSTM", ["x", "w", "r", "b"], ["h"], hidden_size=2), node("Squeeze", ["h", "a"], ["y"]),
        initializer("w", weights(1, 8, 3)), initializer("r", weights(1, 8, 2)), initializer("b", weights(1, 16)),
        initializer("a", np.array([1])), value(11, "x", 2, 1, 3), value(12, "y", 2, 1, 2))
    yield "onnx/external_data", model(
        node("Gemm", ["x", "w", "b"], ["y"], transB=1), elsewhere("w", 0, 48, 3, 4), elsewhere("b", 48, 12, 3), value(11, "x", 2, 4),
        value(12, "y", 2, 3))
    yield "onnx/tensor", field(1, 2) + field(2, 1) + field(8, "t") + field(9, weights(2).tobytes())


def trained():
    """A checkpoint and a model that the project wrote, of a network of 4 numbers and 2 classes."""
    daemon = ampd_process.Daemon()
    root = os.path.join(daemon.folder, "root")
    os.makedirs(root)
    np.save(os.path.join(root, "x.npy"), weights(8, 4))
    np.save(os.path.join(root, "y.npy"), np.arange(8) % 2)
    daemon.data_roots = [root]
    try:
        daemon.start()
        spec = ampd_process.glyphs_job(mode="FP16", steps=2, batch_size=4)
        spec["model"]["layers"] = [{"name": "head", "dense": {"units": 2}}]
        spec["data"] = {"train": {"npy": {"inputs": "x.npy", "targets": "y.npy"}}}
        job = daemon.run(spec)
        assert job.state == job_pb2.Job.SUCCEEDED, job
        folder = os.path.join(daemon.folder, "checkpoint")
        daemon.ctl("download", job.id, folder).check_returncode()
        path = os.path.join(daemon.folder, "model.onnx")
        daemon.ctl("download", job.id, path, "--form", "onnx").check_returncode()
        found = os.path.join(daemon.state_dir, "checkpoints", job.id, "step-000000002")

        def read(name):
            with open(os.path.join(found, name), "rb") as file:
                return file.read()

        files = [read(name) for name in ("state.json", "model.safetensors", "optimizer.safetensors")]
        body = b"".join(line + b"\n" for line in read("MANIFEST").split(b"\n")[:-2])
        yield "checkpoint/whole", parts(b"", *files)
        yield "checkpoint/listed", parts(body, *files)
        with open(path, "rb") as file:
            yield "onnx/exported", file.read()
    finally:
        daemon.close()


def job_files():
    for name in ("mlp", "glyphs-convnet", "glyphs-dcgan", "sequences-ctc", "onnx-finetune", "shakespeare-gpt"):
        with open(os.path.join(EXAMPLES, name + ".yaml"), "rb") as file:
            lines = [line for line in file.read().split(b"\n") if not line.lstrip().startswith(b"#")]
        yield "job_file/" + name, b"\n".join(lines)
    yield "job_file/json", json.dumps(ampd_process.glyphs_job()).encode()
    yield "job_file/set", b"model.layers[0].dense.units=5\nname: x\n"
    yield "config_file/some", b"listen: 127.0.0.1:0\ndata_roots: [/data, sets/]\ncpu_devices: 2\ninsecure: false\n"
    yield "config_file/models", (b"device_models:\n  - {name: Own, kind: CUDA, dollars_per_hour: 1.5}\n"
                                 b"max_spec_bytes: 4096\ndefault_precision_mode: bf16\nheartbeat_timeout_seconds: 30\n")


def filters():
    yield "job_filter/states", b'state = RUNNING AND (user = "ann" OR NOT labels.team:*)\ncreate_time desc\n'
    yield "job_filter/names", b'name:"jo" AND priority >= -3\npriority asc\n'
    yield "job_filter/times", (b'create_time >= "2023-01-31T12:00:00Z" AND create_time < '
                               b'"2024-01-31T12:00:00.5+01:00"\n\n')
    yield "job_filter/labels", b"label.'a b' != \"c\\\"d\" AND sweep = 01hz\nname desc\n"
    yield "job_filter/depth", b"(" * 10 + b"NOT " * 6 + b"state != succeeded" + b")" * 10 + b"\nuser\n"
    yield "job_filter/token", b"\n\nMDEyMzQ1Njc4OWFiY2RlZjoxOjA"


def requests():
    host = b"Host: localhost:7071\r\n"
    get, post = b"GET %s HTTP/1.1\r\n" + host, b"POST %s HTTP/1.1\r\n" + host + b"Content-Type: application/json\r\n"
    yield "http_request/metrics", b"\0GET /metrics HTTP/1.0\r\n\r\n"
    yield "http_request/list", b"\x05" + get % b"/api/v1/jobs?page_size=10&kinds=log,step&view=FULL" + b"\r\n"
    yield "http_request/absolute", b"\x03" + get % b"HTTP://127.0.0.1:7071/api/v1/jobs?view=FULL" + b"\r\n"
    yield "http_request/artifact", b"\xff" + get % b"/api/v1/jobs/01hq/artifacts/a%20b.png?states=RUNNING+x" + b"Range: bytes=0-\r\n\r\n"
    yield "http_request/session", (b"\x01" + post % b"/api/v1/session" + b"Origin: http://localhost:7071\r\nSec-Fetch-Site: same-origin\r\n"
                                   b"Cookie: a=b; ampd_session_7071=c\r\nAuthorization: Bearer ampd_x\r\nContent-Length: 14\r\n\r\n"
                                   b'{"token": "x"}')
    yield "http_request/chunks", (b"\x02" + post % b"/api/v1/jobs/01hq/cancel" + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n"
                                  b"\r\n1;a=b\r\n{\r\n1\r\n}\r\n0\r\nA: b\r\n\r\n")
    yield "http_request/delete", b"\x07DELETE /api/v1/session HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 99999999999999999999\r\n\r\n"
    for name, kind, body in (("token", 0, b'{"token": "ampd_0123456789abcdef"}'), ("cancel", 1, b'{"now": true, "job_id": "01hq"}'),
                             ("pause", 2, b"{}"), ("resume", 3, b""), ("retry", 4, b"job_id: '01hq'\n"),
                             ("checkpoint", 5, b'{"job_id": null, "x": [1.5e3, "\\u00e4"]}')):
        yield "http_body/" + name, bytes([kind]) + body
    for name, body in (("job", b"name: a\nmodel: {layers: [{dense: {units: 0}}]}\ndata:\n  train: {glyphs: {samples: -1}}\n"),
                       ("sweep", b"sweep:\n  list:\n    - {seed: 1}\n    - {seeds: [2]}\n"),
                       ("local-file", b"model: {onnx: {path: ../a.onnx}}\nstart_from: {path: ./b}\n")):
        yield "http_body/" + name, b"\x06" + body


def message(kind, **fields):
    return json_format.ParseDict(fields, kind())


def messages():
    spec = ampd_process.glyphs_job()
    phases = {"name": "n", "labels": {"team": "vision"}, "resources": {"priority": 3, "cpu_threads": 2}}
    sent = [message(training_service_pb2.CreateJobRequest, spec=spec, request_id="r-1", validate_only=True),
            message(plan_pb2.PlanJobRequest, spec=spec),
            message(worker_link_pb2.PlanRequest, spec=spec, data_roots=["/data"]),
            message(worker_link_pb2.DaemonWelcome, spec=spec, session_key="k", protocol=1)]
    for number, one in enumerate(sent):
        yield f"create_job/{number}", bytes([number]) + one.SerializeToString()
    yield "create_job/labels", b"\0" + message(training_service_pb2.CreateJobRequest, spec=phases).SerializeToString()


def record(what, sent):
    data = sent.SerializeToString() if hasattr(sent, "SerializeToString") else sent
    return bytes([what]) + struct.pack("<H", len(data)) + data


def conversations():
    def event(number, **fields):
        return record(5, message(worker_link_pb2.WorkerMessage, event={"number": number, "event": fields}))

    step = {"first_step": 1, "last_step": 1, "phases": [{"name": "main", "steps_applied": 1, "loss": 0.5}]}
    saved = {"checkpoint": "step-000000001", "step": 1, "size_bytes": 100}
    beat = record(6, message(worker_link_pb2.WorkerMessage, heartbeat={"step": 1, "cpu_seconds": 2.5}))

    def finished(outcome, last, **failure):
        fields = {"outcome": outcome, "last_event_number": last}
        if failure:
            fields["failure"] = failure
        return record(7, message(worker_link_pb2.WorkerMessage, finished=fields))

    yield "worker_link/trains", (event(1, step=step) + beat + event(2, checkpoint=saved) + event(2, step=step) +
                                 event(3, log={"text": "x"}) + finished("SUCCEEDED", 3))
    yield "worker_link/fails", event(1, step=step) + finished("FAILED", 1, message="lost", **{"class": "WORKER_CRASH"}) + record(0, b"\xff")
    yield "worker_link/gap", event(5, step=step) + event(1, step=step) + record(2, b"") + record(1, b"") + event(2, log={"text": "y"})
    yield "worker_link/hello", (record(1, message(worker_link_pb2.WorkerHello, credential="wrong", attempt=2)) +
                                record(1, message(worker_link_pb2.WorkerHello, min_protocol=7)) + record(0, b"\x3c"))
    yield "worker_link/stopped", finished("STOPPED", 0) + record(0, b"\x7f")
    welcome = {"welcome": {"protocol": 1, "session_key": "k", "cpu_threads": 1}}
    yield "worker_link/daemon", (record(3, message(worker_link_pb2.DaemonMessage, **welcome)) +
                                 record(3, message(worker_link_pb2.DaemonMessage, acknowledged_number=1)) +
                                 record(3, message(worker_link_pb2.DaemonMessage, command={"kind": "CHECKPOINT"})) +
                                 record(3, message(worker_link_pb2.DaemonMessage, goodbye={})))
    yield "worker_link/lists", record(4, message(training_service_pb2.ListJobsRequest, page_size=3)) + record(4, b"01h0")


def main():
    target = sys.argv[1]
    makers = (arrays, tables, pictures, sounds, tensors, networks, job_files, filters, requests, messages, conversations, trained)
    for maker in makers:
        for name, data in maker():
            path = os.path.join(target, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)


if __name__ == "__main__":
    main()
