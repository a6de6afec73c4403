"""More than the daemon takes at a time: refusals that say when to come back, watchers that read nothing, and messages that
would fill the memory."""

import contextlib
import os
import signal
import socket
import struct

import grpc
from google.protobuf import duration_pb2, json_format

import ampd_process
import raw_clients
from ampd.v1 import training_service_pb2, training_service_pb2_grpc
from ampd_process import DaemonTest, eventually, glyphs_job
from metrics_test import samples
from raw_clients import ACK, PREFACE, SETTINGS, WINDOW_UPDATE, RawClient, call, frame

MIB = 1 << 20
DEAD, DYING = 200, 50
# Of a daemon whose watchers all read nothing.
BOUND = 96 * MIB
# As wide as HTTP/2 has it: what keeps the daemon from sending is the socket alone.
WIDE = (PREFACE + frame(SETTINGS, payload=struct.pack(">HI", 4, 0x7fffffff)) + frame(SETTINGS, ACK) +
        frame(WINDOW_UPDATE, payload=struct.pack(">I", 0x7fff0000 - 65535)))
NARROW = PREFACE + frame(SETTINGS) + frame(SETTINGS, ACK)
# Less than the first event.
TINY = PREFACE + frame(SETTINGS, payload=struct.pack(">HI", 4, 1)) + frame(SETTINGS, ACK)
UNACKNOWLEDGED = PREFACE + frame(SETTINGS)
# Of the daemon beside what call_limits bounds.
ROOM = 96 * MIB
# Calls on one connection that reads no answer; what all of those may take, and what may stay of it afterwards.
CALLS = 5000
UNREAD = 256 * MIB
KEPT = 48 * MIB


def retry_delay(error):
    """Of google.rpc.RetryInfo, seconds, read by hand: Status.details = 3, Any.value = 2, RetryInfo.retry_delay = 1."""
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    kind = b"type.googleapis.com/google.rpc.RetryInfo"
    at = details.index(kind) + len(kind)
    assert details[at] == 0x12 and details[at + 2] == 0x0a, details
    delay = duration_pb2.Duration.FromString(details[at + 4:at + 4 + details[at + 3]])
    return delay.seconds + delay.nanos * 1e-9


class OverloadTest(DaemonTest):
    def connect(self, ampd):
        channel = grpc.insecure_channel(ampd.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(channel.close)
        return training_service_pb2_grpc.TrainingServiceStub(channel)

    def metric(self, ampd, name, labels=""):
        return samples(ampd.http("/metrics")[1]).get((name, labels))

    def watch(self, ampd, job_id):
        """A watcher on a connection of its own, once it has seen an event."""
        stream = self.connect(ampd).WatchJob(training_service_pb2.WatchJobRequest(job_id=job_id), timeout=ampd_process.DEADLINE)
        next(stream)
        return stream

    def stuck(self, ampd, job_id, count, start):
        """Watchers that never read a byte."""
        message = training_service_pb2.WatchJobRequest(job_id=job_id).SerializeToString()
        clients = []
        for _ in range(count):
            client = RawClient(ampd.grpc_address)
            self.addCleanup(client.close)
            client.send(start + call(1, message, b"/ampd.v1.TrainingService/WatchJob"), read=False)
            clients.append(client)
        return clients

    def test_refusals_say_when_to_come_back(self):
        ampd = self.daemon(config={"call_limits": {"watchers": 2}})
        job = ampd.submit(glyphs_job("long", steps=1000000))
        first, second = self.watch(ampd, job.id), self.watch(ampd, job.id)
        self.assertEqual(self.metric(ampd, "ampd_calls", '{class="watchers"}'), 2)
        self.assertEqual(self.metric(ampd, "ampd_calls_refused_total", '{class="watchers"}'), 0)
        with self.assertRaises(grpc.RpcError) as refused:
            self.watch(ampd, job.id)
        self.assertEqual(refused.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("call_limits.watchers: 2", refused.exception.details())
        self.assertGreater(retry_delay(refused.exception), 0)
        self.assertEqual(self.metric(ampd, "ampd_calls_refused_total", '{class="watchers"}'), 1)
        # Other kinds of calls are served.
        self.assertEqual(ampd.get(job.id).id, job.id)
        # The command line waits for its turn.
        ampctl = ampd.ctl_start("watch", job.id)
        eventually(lambda: self.metric(ampd, "ampd_calls_refused_total", '{class="watchers"}') >= 2, "ampctl's refusal")
        self.assertIsNone(ampctl.poll())
        first.cancel()
        self.assertTrue(ampctl.stdout.readline(), "ampctl's first line")
        ampd.ctl("cancel", job.id)
        ampctl.communicate(timeout=ampd_process.DEADLINE)
        second.cancel()
        eventually(lambda: self.metric(ampd, "ampd_calls", '{class="watchers"}') == 0, "the end of all watchers")

    def test_who_goes_away_waits_for_no_profile(self):
        """Over gRPC and over HTTP: neither keeps one of the job's 16 places, nor one among the calls."""
        ampd = self.daemon()
        job = ampd.submit(glyphs_job("stopped", steps=1000000))
        ampd.wait_for_step(job.id, 1)
        request = training_service_pb2.ProfileJobRequest(job_id=job.id)
        begin = lambda: ampd.api().ProfileJob.future(request, timeout=ampd_process.DEADLINE)
        waiting = lambda: self.metric(ampd, "ampd_calls", '{class="writes"}')
        host, port = ampd.http_address.rsplit(":", 1)
        post = (f"POST /api/v1/jobs/{job.id}/profile HTTP/1.1\r\nHost: {ampd.http_address}\r\nContent-Type: application/json\r\n"
                "Content-Length: 2\r\n\r\n{}").encode()
        (worker,) = ampd.worker_pids()
        # No profile comes of it.
        os.kill(worker, signal.SIGSTOP)
        try:
            calls = [begin() for _ in range(16)]
            eventually(lambda: waiting() == 16, "calls that wait")
            self.assertEqual(begin().code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            calls.pop().cancel()
            eventually(lambda: waiting() == 15, "the end of a call that was cancelled")
            with socket.create_connection((host, int(port)), timeout=ampd_process.DEADLINE) as client:
                client.sendall(post)
                eventually(lambda: waiting() == 16, "the request in its place")
                self.assertEqual(begin().code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            eventually(lambda: waiting() == 15, "the end of a request whose client has gone")
            calls.append(begin())
            eventually(lambda: waiting() == 16, "another in its place")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)
        for asked in calls:
            self.assertEqual(asked.code(), grpc.StatusCode.OK)

    def test_watchers_that_read_nothing_take_bounded_memory_and_nobodys_time(self):
        ampd = self.daemon()
        job = ampd.submit(glyphs_job("fast", steps=3000))
        ampd.wait_for_step(job.id, 1)
        before = raw_clients.resident_bytes(ampd.process.pid)
        clients = [client for start in (WIDE, NARROW, TINY, TINY) for client in self.stuck(ampd, job.id, DEAD // 4, start)]
        dying = self.stuck(ampd, job.id, DYING, TINY)
        late = self.watch(ampd, job.id)
        eventually(lambda: self.metric(ampd, "ampd_watchers") >= DEAD + DYING, "all watchers")
        # Who reads gets every event, up to the end; also while others die without a word.
        events = []
        for event in ampd.watch(job.id):
            events.append(event)
            if len(events) % 20 == 0 and dying:
                dying.pop().abort()
        self.assertEqual(dying, [])
        self.assert_sequence(events)
        self.assert_state(ampd.get(job.id), "SUCCEEDED")
        # And who reads again only now. (The first event was read when the stream began.)
        self.assertEqual(list(late), events[1:])
        eventually(lambda: self.metric(ampd, "ampd_watchers") <= DEAD, "the end of those that died")
        self.assertLess(raw_clients.resident_bytes(ampd.process.pid), before + BOUND)
        for client in clients:
            client.close()
        eventually(lambda: self.metric(ampd, "ampd_watchers") == 0, "the end of all watchers")
        self.assert_healthy(ampd)

    def test_answers_that_nobody_reads_take_bounded_memory(self):
        ampd = self.daemon()
        ampd.submit(glyphs_job("before", steps=3))
        before = raw_clients.resident_bytes(ampd.process.pid)
        calls = b"".join(call(2 * n + 1) for n in range(CALLS))
        # The bound on streams holds for who acknowledges it; the others are bounded by call_limits.
        clients = []
        for start in (NARROW, NARROW, UNACKNOWLEDGED, UNACKNOWLEDGED, UNACKNOWLEDGED):
            clients.append(RawClient(ampd.grpc_address))
            self.addCleanup(clients[-1].close)
            clients[-1].send(start + calls, seconds=2, read=False)
            self.assertLess(raw_clients.resident_bytes(ampd.process.pid), before + UNREAD)
        self.assert_answers(ampd)
        for client in clients:
            client.close()
        eventually(lambda: self.metric(ampd, "ampd_calls", '{class="reads"}') == 0, "the end of all calls")
        eventually(lambda: raw_clients.resident_bytes(ampd.process.pid) < before + KEPT, "the memory to come back")
        self.assert_healthy(ampd)

    def assert_answers(self, ampd):
        info = self.connect(ampd).GetServerInfo(training_service_pb2.GetServerInfoRequest(), timeout=ampd_process.DEADLINE)
        self.assertIn("ampd.v1", info.apis)

    def test_messages_that_never_end_take_bounded_memory(self):
        ampd = self.daemon(config={"call_limits": {"connection_bytes": 64 * MIB}})
        before = raw_clients.resident_bytes(ampd.process.pid)
        clients = []
        for _ in range(4):
            clients.append(raw_clients.BegunCalls(ampd.grpc_address, b"/ampd.v1.TrainingService/CreateJob", 150, MIB))
            self.addCleanup(clients[-1].close)
        # As much as the daemon takes, which cancels calls while others go on.
        sent = lambda: sum(sum(client.sent.values()) for client in clients)
        ended = lambda: sum(len(client.ended) for client in clients)
        eventually(lambda: sum(client.step() for client in clients) == 0 and ended() > 0 and sent() > 128 * MIB, "an end")
        self.assertLess(ended(), 600)
        eventually(lambda: raw_clients.resident_bytes(ampd.process.pid) < before + 64 * MIB + ROOM, "the memory to be bounded")
        self.assert_answers(ampd)
        for client in clients:
            client.close()
        eventually(lambda: raw_clients.resident_bytes(ampd.process.pid) < before + KEPT, "the memory to come back")
        self.assert_healthy(ampd)

    def test_requests_that_swell_take_bounded_memory(self):
        ampd = self.daemon(config={"call_limits": {"request_bytes": 64 * MIB}})
        before = raw_clients.resident_bytes(ampd.process.pid)

        def request(layers):
            """Layers without anything: two bytes each on the wire, some hundred in memory."""
            message = training_service_pb2.CreateJobRequest()
            for _ in range(layers):
                message.spec.model.layers.add()
            return message

        # 32 MiB is what a connection may have; 20 calls of some 18 MiB; one that never will have a chance.
        stubs = [self.connect(ampd) for _ in range(4)]
        calls = [stub.CreateJob.future(request(100000), timeout=ampd_process.DEADLINE) for stub in stubs for _ in range(20)]
        peak = before
        while not all(call.done() for call in calls):
            peak = max(peak, raw_clients.resident_bytes(ampd.process.pid))
        self.assertLess(peak, before + 64 * MIB + 2 * ROOM)
        codes = {call.code() for call in calls}
        self.assertLessEqual(codes, {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED})
        for call in calls:
            if call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
                self.assertIn("call_limits.request_bytes: ", call.details())
                self.assertGreater(retry_delay(call), 0)
        with self.assertRaises(grpc.RpcError) as refused:
            stubs[0].CreateJob(request(500000), timeout=ampd_process.DEADLINE)
        self.assertEqual(refused.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertNotIn(b"RetryInfo", dict(refused.exception.trailing_metadata()).get("grpc-status-details-bin", b""))
        eventually(lambda: raw_clients.resident_bytes(ampd.process.pid) < before + KEPT, "the memory to come back")
        self.assert_healthy(ampd)

    def test_pages_that_nobody_reads_take_bounded_memory(self):
        # A page of 1,000 jobs counts as 16 MiB: there is room for less than four.
        ampd = self.daemon(config={"call_limits": {"request_bytes": 64 * MIB}})
        sweep = training_service_pb2.CreateSweepRequest()
        json_format.ParseDict(glyphs_job("one of many", steps=1000000, sweep={"grid": {"seed": list(range(1, 301))}}), sweep.spec)
        self.connect(ampd).CreateSweep(sweep, timeout=ampd_process.DEADLINE)
        page = training_service_pb2.ListJobsRequest(page_size=1000).SerializeToString()
        before = raw_clients.resident_bytes(ampd.process.pid)
        calls = b"".join(call(2 * n + 1, page, b"/ampd.v1.TrainingService/ListJobs") for n in range(300))
        clients = []
        for _ in range(3):
            clients.append(RawClient(ampd.grpc_address))
            self.addCleanup(clients[-1].close)
            clients[-1].send(NARROW + calls, seconds=2, read=False)
        eventually(lambda: self.metric(ampd, "ampd_calls_refused_total", '{class="reads"}') >= 896, "the refusals")
        self.assertLess(raw_clients.resident_bytes(ampd.process.pid), before + ROOM)
        self.assert_answers(ampd)
        for client in clients:
            client.close()
        eventually(lambda: self.metric(ampd, "ampd_calls", '{class="reads"}') == 0, "the end of all calls")
        self.assertEqual(ampd.ctl("list", "--limit", "300").stdout.count("one of many"), 300)

    def test_dead_watchers_are_dropped(self):
        ampd = self.daemon(config={"keepalive_seconds": 5, "keepalive_timeout_seconds": 10})
        job = ampd.submit(glyphs_job("long", steps=1000000))
        ampd.wait_for_step(job.id, 1)
        descriptors = raw_clients.descriptors(ampd.process.pid)
        alive = self.watch(ampd, job.id)
        self.stuck(ampd, job.id, 20, WIDE)
        self.stuck(ampd, job.id, 20, NARROW)
        eventually(lambda: self.metric(ampd, "ampd_watchers") == 41, "all watchers")
        # They answer no ping, or take no data; the clients never close.
        eventually(lambda: self.metric(ampd, "ampd_watchers") == 1, "the end of the dead ones")
        eventually(lambda: raw_clients.descriptors(ampd.process.pid) <= descriptors + 8, "their descriptors")
        # Who reads, and answers pings, stays.
        last = next(alive).sequence
        for event in alive:
            if event.sequence >= last + 100:
                break
        with contextlib.suppress(grpc.RpcError):
            alive.cancel()
        self.assertEqual(ampd.ctl("cancel", job.id).returncode, 0)


if __name__ == "__main__":
    ampd_process.main()
