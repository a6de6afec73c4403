"""Clients that keep to no protocol: plain sockets, and HTTP/2's frames as bytes (RFC 9113)."""

import os
import select
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind, flags=0, stream=0, payload=b"", length=None):
    """A frame; `length` says another length than the payload's."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name, value):
    """A header field, as a literal that is not indexed (RFC 7541, 6.2.2). Names and values below 127 bytes."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(method=b"/ampd.v1.TrainingService/GetServerInfo"):
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", method), (b":authority", b"x"),
              (b"content-type", b"application/grpc"), (b"te", b"trailers"))
    return b"".join(header(*field) for field in fields)


def call(stream, message=b"", method=b"/ampd.v1.TrainingService/GetServerInfo", length=None):
    """A unary call; `length` says another length than the message's."""
    size = len(message) if length is None else length
    return (frame(HEADERS, END_HEADERS, stream, call_headers(method)) +
            frame(DATA, END_STREAM, stream, b"\0" + struct.pack(">I", size) + message))


class RawClient:
    """One TCP connection, from `source` where it is said. Nothing it does fails because the other end has closed it."""

    def __init__(self, address, source=None):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=30, source_address=source and (source, 0))
        self.socket.setblocking(False)
        self.received = b""
        self.closed = False

    def _read(self):
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.received += data
        self.closed = self.closed or not data

    def _ready(self, events, seconds):
        """What holds of the socket within `seconds`; 0: nothing."""
        poll = select.poll()
        poll.register(self.socket, events)
        ready = poll.poll(seconds * 1000)
        return ready[0][1] if ready else 0

    def send(self, data, seconds=10.0, read=True):
        """Sends `data`, or what the other end takes of it until it closes, or takes nothing for `seconds`. Reads
        meanwhile, unless told not to."""
        view = memoryview(data)
        while view and not self.closed:
            ready = self._ready(select.POLLOUT | (select.POLLIN if read else 0), seconds)
            if not ready:
                return False
            if read and ready & ~select.POLLOUT:
                self._read()
            if ready & ~select.POLLIN:
                try:
                    view = view[self.socket.send(view):]
                except BlockingIOError:
                    pass
                except OSError:
                    self.closed = True
        return not view

    def finish(self):
        """No more from this end."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def read_to_end(self, seconds=60.0):
        """All until the other end closes; None when it does not for `seconds`."""
        while not self.closed:
            if not self._ready(select.POLLIN, seconds):
                return None
            self._read()
        return self.received

    def poll(self):
        """Reads what is there; whether the other end has closed."""
        if not self.closed and self._ready(select.POLLIN, 0):
            self._read()
        return self.closed

    def close(self):
        self.socket.close()

    def abort(self):
        """As a client ends that is killed with data unread: a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class BegunCalls:
    """Calls on one connection, each with a message of `size` bytes of which the last never comes; what HTTP/2's windows
    let through is sent."""

    PREFIX = 5
    MAX_FRAME = 1 << 14

    def __init__(self, address, method, calls, size):
        self.client = RawClient(address)
        self.message = b"\0" + struct.pack(">I", size) + b"x" * (size - 1)
        # Bytes that may be sent: of the connection, and beyond the initial window of each stream.
        self.window = self.initial = (1 << 16) - 1
        self.windows = {2 * n + 1: 0 for n in range(calls)}
        self.sent = {stream: 0 for stream in self.windows}
        self.ended = set()
        self.unparsed = b""
        self.client.send(PREFACE + frame(SETTINGS) + frame(SETTINGS, ACK))
        for stream in self.windows:
            self.client.send(frame(HEADERS, END_HEADERS, stream, call_headers(method)))

    def close(self):
        self.client.close()

    def step(self):
        """Sends what may be sent; how much that was."""
        self.client.poll()
        self._parse()
        before = sum(self.sent.values())
        for stream in self.sent:
            self._send(stream)
        return sum(self.sent.values()) - before

    def _send(self, stream):
        at = self.sent[stream]
        size = min(len(self.message) - at, self.window, self.initial + self.windows[stream] - at, self.MAX_FRAME)
        if size <= 0 or stream in self.ended or self.client.closed:
            return
        self.client.send(frame(DATA, 0, stream, self.message[at:at + size]))
        self.sent[stream] += size
        self.window -= size

    def _parse(self):
        data = self.unparsed + self.client.received
        self.client.received = b""
        at = 0
        while len(data) - at >= 9:
            size = int.from_bytes(data[at:at + 3], "big")
            if len(data) - at < 9 + size:
                break
            stream = int.from_bytes(data[at + 5:at + 9], "big")
            self._take(data[at + 3], data[at + 4], stream, data[at + 9:at + 9 + size])
            at += 9 + size
        self.unparsed = data[at:]

    def _take(self, kind, flags, stream, payload):
        if kind == WINDOW_UPDATE and stream == 0:
            self.window += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self.windows[stream] += int.from_bytes(payload, "big")
        elif kind == SETTINGS:
            for number, value in struct.iter_unpack(">HI", payload):
                self.initial = value if number == 4 else self.initial
        elif kind == PING and not flags & ACK:
            self.client.send(frame(PING, ACK, payload=payload), read=False)
        elif kind in (RST_STREAM, HEADERS):
            self.ended.add(stream)


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
