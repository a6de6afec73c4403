"""A daemon that runs out of descriptors, and clients that would take them all: others are let in as soon as there are some."""

import contextlib
import os
import resource
import socket

import grpc

import ampd_process
from ampd.v1 import training_service_pb2
from ampd_process import DaemonTest, eventually, glyphs_job
from metrics_test import samples
from raw_clients import PREFACE, SETTINGS, RawClient, frame

# Of the daemon, and the connections of a client that wants more than those.
DESCRIPTORS = 512
FLOOD = 520


class FewDescriptors(ampd_process.Daemon):
    def command(self):
        return ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", "--"] + super().command()


@contextlib.contextmanager
def no_descriptors(pid):
    """The process gets not one more meanwhile."""
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(set(range(len(used) + 1)) - used), before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


class DescriptorsTest(DaemonTest):
    def small_daemon(self):
        ampd = FewDescriptors()
        self.daemons.append(ampd)
        return ampd.start()

    def flood(self, ampd, source="127.0.0.1"):
        clients = []
        for _ in range(FLOOD):
            clients.append(RawClient(ampd.grpc_address, source))
            self.addCleanup(clients[-1].close)
            clients[-1].send(PREFACE + frame(SETTINGS), read=False)
        return clients

    def assert_answers(self, ampd, first_try=True):
        """On a connection of its own."""
        with grpc.insecure_channel(ampd.grpc_address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            info = channel.unary_unary("/ampd.v1.TrainingService/GetServerInfo",
                                       training_service_pb2.GetServerInfoRequest.SerializeToString,
                                       training_service_pb2.ServerInfo.FromString)
            self.assertIn("ampd.v1", info(training_service_pb2.GetServerInfoRequest(), timeout=30, wait_for_ready=not first_try).apis)

    def test_calls_are_answered_once_a_flood_has_gone(self):
        ampd = self.small_daemon()
        clients = self.flood(ampd)
        # Settings are the first that gRPC says.
        eventually(lambda: all([client.poll() or client.received for client in clients]), "a word or the end, for each", 30)
        self.assertEqual(ampd.http("/healthz"), (200, "ok\n"))
        for client in clients:
            client.close()
        # The daemon may not yet have noticed.
        self.assert_answers(ampd, first_try=False)
        self.assert_healthy(ampd)

    def test_one_address_does_not_take_all(self):
        ampd = self.small_daemon()
        clients = self.flood(ampd, "127.0.0.2")
        for _ in range(3):
            self.assert_answers(ampd)
        eventually(lambda: all([client.poll() or client.received for client in clients]), "a word or the end, for each", 30)
        served = [client for client in clients if not client.poll()]
        self.assertGreater(len(served), DESCRIPTORS // 8)
        self.assertLess(len(served), DESCRIPTORS // 2)
        refused = samples(ampd.http("/metrics")[1])["ampd_connections_refused_total", '{port="grpc",reason="client"}']
        self.assertEqual(refused, FLOOD - len(served))
        self.assert_healthy(ampd)

    def test_a_moment_without_descriptors(self):
        """At the port, and at the workers' socket."""
        ampd = self.daemon()
        worker = socket.socket(socket.AF_UNIX)
        self.addCleanup(worker.close)
        with no_descriptors(ampd.process.pid):
            client = RawClient(ampd.grpc_address)
            self.addCleanup(client.close)
            client.send(PREFACE + frame(SETTINGS), read=False)
            worker.connect(os.path.join(ampd.state_dir, "worker.sock"))
            eventually(lambda: ampd.log().count("Too many open files") >= 2, "two connections without a descriptor")
        self.assert_answers(ampd)
        # Who waited meanwhile is let in.
        eventually(lambda: client.poll() or client.received, "an answer")
        self.assertFalse(client.closed)
        counted = samples(ampd.http("/metrics")[1])
        for port in ("grpc", "workers"):
            self.assertGreater(counted["ampd_accept_pauses_total", f'{{port="{port}"}}'], 0)
        self.assert_healthy(ampd)


if __name__ == "__main__":
    ampd_process.main()
