"""Clients that send what no client may, on both ports and on the workers' socket: the daemon stays, goes on answering
others, and has its memory and descriptors back afterwards."""

import itertools
import os
import resource
import socket
import stat
import threading

import grpc

import ampd_process
import raw_clients
from ampd.v1 import training_service_pb2, worker_link_pb2
from ampd_process import OneDaemonTest, eventually, glyphs_job
from raw_clients import (ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, PRIORITY, PUSH_PROMISE,
                         RST_STREAM, SETTINGS, WINDOW_UPDATE, RawClient, call, call_headers, frame, header)

MIB = 1 << 20
IDLE = 200
# Connections of one client, and those of them that the HTTP port keeps.
CROWD = 3000
HTTP_CONNECTIONS = 1024
# What a daemon may keep of the memory that a flood took: the allocator gives it back in its own time.
KEPT = 96 * MIB
# What gRPC holds of answers that nobody reads: docs/decisions/0039-overload.md.
UNREAD = 256 * MIB
CONNECTED = PREFACE + frame(SETTINGS)

GRPC_SHAPES = {
    "nothing": b"",
    "half a preface": PREFACE[:11],
    "another preface": b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + frame(SETTINGS),
    "HTTP/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("160301020001000 1fc0303".replace(" ", "")) + b"\x7f" * 500,
    "no settings": PREFACE + call(1),
    "settings of a wrong size": PREFACE + frame(SETTINGS, payload=b"\0\4\0"),
    "settings on a stream": PREFACE + frame(SETTINGS, stream=3),
    "settings that cannot be": PREFACE + frame(SETTINGS, payload=b"\0\4\xff\xff\xff\xff" + b"\0\5\0\0\0\1"),
    "an acknowledgement of nothing": CONNECTED + frame(SETTINGS, ACK) * 50,
    "a frame of 16 MiB": CONNECTED + frame(DATA, stream=1, length=(1 << 24) - 1, payload=b"x" * 100),
    "data without a stream": CONNECTED + frame(DATA, stream=0, payload=b"x"),
    "data of a stream that is not": CONNECTED + frame(DATA, stream=77, payload=b"x"),
    "a continuation of nothing": CONNECTED + frame(CONTINUATION, END_HEADERS, 1, call_headers()),
    "headers without an end": CONNECTED + frame(HEADERS, 0, 1, call_headers()),
    "headers, then another frame": CONNECTED + frame(HEADERS, 0, 1, call_headers()) + frame(PING, payload=b"8" * 8),
    "headers that are none": CONNECTED + frame(HEADERS, END_HEADERS, 1, b"\xff" * 200),
    "an index that is not": CONNECTED + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\x0f"),
    "a table of 4 GiB": CONNECTED + frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\xff\xff\xff\x0f" + call_headers()),
    "padding beyond the frame": CONNECTED + frame(HEADERS, END_HEADERS | 8, 1, b"\xff" + call_headers()),
    "even streams": CONNECTED + call(2),
    "streams that go back": CONNECTED + call(9) + call(3),
    "a window beyond its bound": CONNECTED + frame(WINDOW_UPDATE, payload=b"\x7f\xff\xff\xff") * 3,
    "a window of nothing": CONNECTED + frame(WINDOW_UPDATE, payload=bytes(4)),
    "a promise": CONNECTED + frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + call_headers()),
    "a stream that needs itself": CONNECTED + frame(PRIORITY, stream=1, payload=b"\0\0\0\1\x10"),
    "a reset of nothing": CONNECTED + frame(RST_STREAM, stream=5, payload=bytes(4)),
    "farewell": CONNECTED + frame(GOAWAY, payload=bytes(8)) + call(1),
    "a frame of no kind": CONNECTED + frame(99, 255, 7, b"?" * 64) + call(1),
    "a message of 4 GiB": CONNECTED + call(1, length=0xffffffff),
    "half a message": CONNECTED + call(1, b"\x0a\x05ab", length=40),
    "a message that is none": CONNECTED + call(1, b"\xff" * 30, b"/ampd.v1.TrainingService/CreateJob"),
    "compressed with nothing": CONNECTED + frame(HEADERS, END_HEADERS, 1, call_headers()) +
                               frame(DATA, END_STREAM, 1, b"\1\0\0\0\3abc"),
    "no method": CONNECTED + call(1, method=b"/ampd.v1.TrainingService/NoSuchThing") + call(3, method=b"//../x"),
    "no message": CONNECTED + frame(HEADERS, END_HEADERS | END_STREAM, 1, call_headers()),
}

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
HTTP_SHAPES = {
    "nothing": b"",
    "half a line": b"GET /hea",
    "half a head": GET,
    "no HTTP": b"\x16\x03\x01\x02\x00" + b"\x7f" * 400 + b"\r\n\r\n",
    "HTTP/2": PREFACE + frame(SETTINGS),
    "zeros": bytes(5000),
    "a version that is not": b"GET /healthz HTTP/9.9\r\n\r\n",
    "a long path": b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
    "a long header": GET + b"X: " + b"a" * 100000 + b"\r\n\r\n",
    "many headers": GET + b"".join(b"X-%d: y\r\n" % n for n in range(5000)) + b"\r\n",
    "a header without a name": GET + b": y\r\n\r\n",
    "a folded header": GET + b"X: y\r\n z\r\n\r\n",
    "a zero in a header": GET + b"X: a\0b\r\n\r\n",
    "dots": b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    "dots in disguise": b"GET /%2e%2e/%2e%2e%2fetc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    "a path with a zero": b"GET /healthz%00/x HTTP/1.1\r\nHost: x\r\n\r\n",
    "a proxy's request": b"GET http://127.0.0.1:1/metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT": b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "an upgrade": GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
    "a socket": b"GET /metrics HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: "
                b"AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    "a length below zero": GET + b"Content-Length: -5\r\n\r\n",
    "a length beyond all": GET + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "a body of 16 TiB": b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 17592186044416\r\n\r\nabc",
    "ranges": GET + b"Range: bytes=0-,0-,0-\r\n\r\n",
}

# Requests whose bodies do not come to an end: read by a handler, by none, and of a length that is not true.
POST = b"POST /api/v1/jobs/01hq/cancel HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
UNENDING = {
    "a body for a handler": POST + b"Content-Length: 60000\r\n\r\n",
    "a body for nobody": GET + b"Content-Length: 60000\r\n\r\n",
    "a body where no path is": b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n",
    "chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n",
    "a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nea60\r\n",
}

# A second request within the first, as one of two servers in a row would take it for: never answered.
SECOND = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
SMUGGLED = {
    "in a body": GET + b"Content-Length: %d\r\n\r\n" % len(SECOND) + SECOND,
    "behind the first": GET + b"\r\n" + SECOND,
    "behind a short body": GET + b"Content-Length: 1\r\n\r\nx" + SECOND,
    "two lengths": GET + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(SECOND) + SECOND,
    "a length and chunks": b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "chunks that are none": GET + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SECOND,
    "chunks of a size that is not": GET + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\n" + SECOND,
    "a space before the colon": GET + b"Content-Length : %d\r\n\r\n" % len(SECOND) + SECOND,
    "keeping alive": GET + b"Connection: keep-alive\r\n\r\n" + SECOND,
}


class HostileClientsTest(OneDaemonTest):
    def setUp(self):
        super().setUp()
        self.pid = self.ampd.process.pid
        self.clients = []
        self.addCleanup(lambda: [client.close() for client in self.clients])
        self.assert_answers()
        self.descriptors = raw_clients.descriptors(self.pid)
        self.memory = raw_clients.resident_bytes(self.pid)

    def client(self, address):
        client = RawClient(address)
        self.clients.append(client)
        return client

    def assert_answers(self):
        """Both ports answer those who ask properly, on connections of their own."""
        self.assertIsNone(self.ampd.process.poll(), "the daemon is gone")
        # Of its own: channels to one address share their connection, and a refused call may have cost it.
        with grpc.insecure_channel(self.ampd.grpc_address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            info = channel.unary_unary("/ampd.v1.TrainingService/GetServerInfo",
                                       training_service_pb2.GetServerInfoRequest.SerializeToString,
                                       training_service_pb2.ServerInfo.FromString)
            self.assertIn("ampd.v1", info(training_service_pb2.GetServerInfoRequest(), timeout=30, wait_for_ready=True).apis)
        self.assertEqual(self.ampd.http("/healthz"), (200, "ok\n"))
        self.assertIn("ampd_build_info", self.ampd.http("/metrics")[1])

    def assert_recovers(self, memory=True):
        """The clients gone, the daemon is as it was."""
        for client in self.clients:
            client.close()
        self.clients.clear()
        self.assert_answers()
        eventually(lambda: raw_clients.descriptors(self.pid) <= self.descriptors + 8, "the descriptors to come back")
        if memory:
            eventually(lambda: raw_clients.resident_bytes(self.pid) <= self.memory + KEPT, "the memory to come back")

    def assert_bounded(self, connections, more=0):
        self.assertLess(raw_clients.resident_bytes(self.pid), self.memory + 2 * KEPT + more)
        self.assertLess(raw_clients.descriptors(self.pid), self.descriptors + connections + 64)

    def test_bytes_that_are_no_protocol(self):
        rng = ampd_process.seeded_random()
        for address, shapes, start in ((self.ampd.grpc_address, GRPC_SHAPES, CONNECTED), (self.ampd.http_address, HTTP_SHAPES, GET)):
            for data in shapes.values():
                # As it is, with an end to it, and byte by byte as far as the daemon listens.
                self.client(address).send(data)
                half_closed = self.client(address)
                half_closed.send(data)
                half_closed.finish()
                slow = self.client(address)
                for n in range(min(len(data), 60)):
                    slow.send(data[n:n + 1])
            for _ in range(30):
                noise = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 400)))
                self.client(address).send(noise)
                self.client(address).send(start + noise)
                cut = rng.choice(list(shapes.values()))
                self.client(address).send(cut[:rng.randrange(len(cut) + 1)])
            self.assert_answers()
        self.assert_bounded(len(self.clients))
        self.assert_recovers()
        self.assert_healthy(self.ampd)

    def test_idle_connections_keep_nobody_out(self):
        silent = [self.client(address) for address in (self.ampd.grpc_address, self.ampd.http_address) for _ in range(IDLE)]
        started = [self.client(self.ampd.grpc_address) for _ in range(IDLE)]
        for client in started:
            client.send(CONNECTED)
        dripping = [self.client(self.ampd.http_address) for _ in range(IDLE)]
        for client in dripping:
            client.send(b"GET /healthz HTTP/1.1\r\n")
        self.assert_bounded(len(self.clients))
        for n in range(4):
            for client in dripping:
                client.send(b"X-%d: y\r\n" % n)
            self.assert_answers()
        self.assert_healthy(self.ampd)
        # Who says nothing is shut out, and who never comes to an end.
        eventually(lambda: all([client.poll() for client in silent + dripping]), "the end of silent connections", 60)
        # Who began as HTTP/2 does may stay, and is heard.
        for client in started[:5]:
            client.send(call(1))
            eventually(lambda client=client: client.poll() or b"ampd.v1" in client.received, "an answer")
            self.assertIn(b"ampd.v1", client.received)
        self.assert_recovers()

    def test_bodies_that_drip_keep_nobody_out(self):
        clients = []
        for head in itertools.islice(itertools.cycle(UNENDING.values()), IDLE):
            clients.append(self.client(self.ampd.http_address))
            clients[-1].send(head)
        over = threading.Event()

        def drip():
            # Zeros are also the beginning of a chunk's size.
            while not over.wait(0.3):
                for client in clients:
                    client.send(b"0")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            for _ in range(5):
                self.assert_answers()
            # A body beyond what is read is not waited for.
            for name in ("a body of 16 TiB", "a length beyond all"):
                client = self.client(self.ampd.http_address)
                client.send(HTTP_SHAPES[name])
                self.assertTrue((client.read_to_end() or b"").startswith(b"HTTP/1.1 "), name)
            eventually(lambda: all([client.closed for client in clients]), "the end of dripping connections", 120)
        finally:
            over.set()
            dripping.join()
        for client in clients:
            # Without a word where this machine was so slow that the first byte came too late.
            self.assertIn(client.received[:12], (b"", b"HTTP/1.1 408"))
        self.assert_recovers()
        self.assert_healthy(self.ampd)

    def test_more_connections_than_there_is_room_for(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 8192), hard))
        many = min(CROWD, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
        for n in range(many):
            self.client(self.ampd.http_address).send((b"", b"GET /hea", UNENDING["a body for a handler"])[n % 3])
            if n % 500 == 0:
                self.assert_answers()
        self.assert_answers()
        self.assert_bounded(HTTP_CONNECTIONS)
        self.assert_recovers()
        self.assert_healthy(self.ampd)

    def test_readers_that_take_nothing_keep_nobody_out(self):
        for _ in range(IDLE):
            client = self.client(self.ampd.http_address)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            client.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", read=False)
        # So many whole requests of one client at once are more than may wait for a slow machine.
        eventually(lambda: self.ampd.http("/healthz")[0] == 200, "the end of the rush")
        for _ in range(5):
            self.assert_answers()
        self.assert_bounded(len(self.clients))
        self.assert_recovers()
        self.assert_healthy(self.ampd)

    def test_floods_of_frames(self):
        floods = {
            "settings": frame(SETTINGS, payload=b"\0\4\0\1\0\0") * 20000,
            "pings": frame(PING, payload=b"12345678") * 20000,
            "empty data": frame(HEADERS, END_HEADERS, 1, call_headers()) + frame(DATA, 0, 1) * 20000,
            "continuations": frame(HEADERS, 0, 1, call_headers()) +
                             frame(CONTINUATION, 0, 1, header(b"x" * 100, b"y" * 100) * 80) * 500,
            "resets": b"".join(frame(HEADERS, END_HEADERS, 2 * n + 1, call_headers()) +
                               frame(RST_STREAM, 0, 2 * n + 1, b"\0\0\0\x08") for n in range(5000)),
            "streams": b"".join(frame(HEADERS, END_HEADERS, 2 * n + 1, call_headers()) for n in range(20000)),
            # Whole calls are in overload_test.py.
            "priorities": b"".join(frame(PRIORITY, stream=2 * n + 1, payload=b"\0\0\0\0\x10") for n in range(20000)),
        }
        for name, flood in floods.items():
            with self.subTest(name):
                # Answers are not read: they pile up to a bound. (The bound on streams holds for who acknowledges it.)
                client = self.client(self.ampd.grpc_address)
                client.send(CONNECTED + frame(SETTINGS, ACK))
                client.send(flood, seconds=2, read=False)
                self.assert_bounded(len(self.clients), UNREAD)
                self.assert_answers()
        self.assert_bounded(0, UNREAD)
        self.assert_recovers(memory=False)
        self.assert_healthy(self.ampd)

    def test_messages_over_the_limit(self):
        request = training_service_pb2.CreateJobRequest()
        request.spec.name = "x" * (8 * MIB)
        with self.assertRaises(grpc.RpcError) as refused:
            self.ampd.api().CreateJob(request, timeout=30)
        self.assertEqual(refused.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        # Below the message's limit, above the spec's.
        request.spec.name = "x" * (MIB + 1000)
        with self.assertRaises(grpc.RpcError) as refused:
            self.ampd.api().CreateJob(request, timeout=30)
        self.assertIn(refused.exception.code(), (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT))
        with self.assertRaises(grpc.RpcError) as refused:
            self.ampd.api().ListDevices(training_service_pb2.ListDevicesRequest(), timeout=30, metadata=[("x", "y" * 100000)])
        self.assertEqual(refused.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        for _ in range(20):
            # A message of 4 GiB, begun.
            self.client(self.ampd.grpc_address).send(CONNECTED + call(1, b"x" * 16000, length=0xffffffff))
        self.assert_bounded(len(self.clients))
        self.assert_recovers()
        self.assert_healthy(self.ampd)

    def test_requests_that_are_no_requests(self):
        for name, data in SMUGGLED.items():
            with self.subTest(name):
                client = self.client(self.ampd.http_address)
                client.send(data)
                client.finish()
                answer = client.read_to_end()
                self.assertIsNotNone(answer, "the connection stays open")
                self.assertLessEqual(answer.count(b"HTTP/1.1 "), 1, answer)
                self.assertNotIn(b"ampd_", answer)
        for name in ("a long path", "a long header", "many headers", "no HTTP", "zeros", "dots", "dots in disguise", "CONNECT",
                     "a body of 16 TiB"):
            with self.subTest(name):
                client = self.client(self.ampd.http_address)
                client.send(HTTP_SHAPES[name])
                answer = client.read_to_end()
                self.assertIsNotNone(answer, "the connection stays open")
                # Refused in words, or without any.
                self.assertTrue(answer[:12] == b"" or answer.startswith(b"HTTP/1.") and answer[9:10] == b"4", answer[:200])
                self.assertNotIn(b"root:", answer)
        self.assert_recovers()

    def attach(self, messages):
        """The status of a worker's stream that says `messages` and then waits."""
        sockets = [path for path in (os.path.join(self.ampd.state_dir, name) for name in os.listdir(self.ampd.state_dir))
                   if stat.S_ISSOCK(os.stat(path).st_mode)]
        self.assertEqual(len(sockets), 1)
        options = [("grpc.max_send_message_length", 80 * MIB)]
        with grpc.insecure_channel("unix:" + sockets[0], options=options) as channel:
            attach = channel.stream_stream("/ampd.v1.WorkerLink/Attach", worker_link_pb2.WorkerMessage.SerializeToString,
                                           worker_link_pb2.DaemonMessage.FromString)
            over = threading.Event()
            self.addCleanup(over.set)

            def said():
                yield from messages
                over.wait(60)

            with self.assertRaises(grpc.RpcError) as ended:
                for _ in attach(said(), timeout=60):
                    pass
            over.set()
        return ended.exception.code()

    def test_workers_that_nobody_started(self):
        job = self.ampd.submit(glyphs_job("watched", steps=200, every_steps=10))
        self.ampd.wait_for_step(job.id, 3)
        message = worker_link_pb2.WorkerMessage

        def hello(**fields):
            return message(hello=worker_link_pb2.WorkerHello(min_protocol=1, max_protocol=1, attempt=1, **fields))

        finished = message(finished=worker_link_pb2.WorkerFinished(outcome=worker_link_pb2.WorkerFinished.SUCCEEDED))
        self.assertEqual(self.attach([finished]), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(self.attach([message()]), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(self.attach([hello(job_id=job.id), finished]), grpc.StatusCode.UNAUTHENTICATED)
        self.assertEqual(self.attach([hello(job_id=job.id, credential="0" * 64), finished]), grpc.StatusCode.UNAUTHENTICATED)
        self.assertEqual(self.attach([hello(job_id="01h" + "0" * 23)]), grpc.StatusCode.NOT_FOUND)
        self.assertEqual(self.attach([hello(job_id="../" * 9)]), grpc.StatusCode.INVALID_ARGUMENT)
        # server/launch/worker_contract.h: 64 MiB are taken, as far as a worker's events go and farther.
        self.assertEqual(self.attach([hello(job_id=job.id, credential="x" * (60 * MIB))]), grpc.StatusCode.UNAUTHENTICATED)
        self.assertEqual(self.attach([hello(job_id=job.id, credential="x" * (65 * MIB))]), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assert_state(self.ampd.wait(job.id), "SUCCEEDED")
        self.assertEqual(self.ampd.get(job.id).attempt, 1)
        self.assert_sequence(self.ampd.events(job.id))
        self.assert_recovers()


if __name__ == "__main__":
    ampd_process.main()
