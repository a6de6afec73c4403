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
    """One TCP connection. Nothing it does fails because the other end has closed it."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=30)
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

    def send(self, data, seconds=10.0, read=True):
        """Sends `data`, or what the other end takes of it until it closes, or takes nothing for `seconds`. Reads
        meanwhile, unless told not to."""
        view = memoryview(data)
        while view and not self.closed:
            wanted = [self.socket] if read else []
            readable, writable, _ = select.select(wanted, [self.socket], [], seconds)
            if not readable and not writable:
                return False
            if readable:
                self._read()
            if writable:
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
            if not select.select([self.socket], [], [], seconds)[0]:
                return None
            self._read()
        return self.received

    def poll(self):
        """Reads what is there; whether the other end has closed."""
        if not self.closed and select.select([self.socket], [], [], 0)[0]:
            self._read()
        return self.closed

    def close(self):
        self.socket.close()


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
