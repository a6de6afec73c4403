"""Who gets in and what they may do: tokens, roles, whose jobs are whose, TLS and the audit log, at a real daemon."""

import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess

import grpc
from google.protobuf import json_format

import ampd_process
import certificates
from ampd.v1 import training_service_pb2 as api
from ampd.v1 import training_service_pb2_grpc as stubs
from ampd_process import DEADLINE, DaemonTest, eventually, glyphs_job, state_name
from raw_clients import ACK, PREFACE, SETTINGS, RawClient, call, frame

SERVICE = api.DESCRIPTOR.services_by_name["TrainingService"]
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
# ServerReflectionRequest{list_services: ""}
LIST_SERVICES = b"\x3a\x00"


class Client:
    """A user's calls: client.GetJob(job_id=...) gives (code, answer), of a stream all its answers."""

    def __init__(self, address, token=None, ca=None, pair=None):
        # Connections of its own: one of an earlier client may be dead, or have seen another certificate.
        options = [("grpc.use_local_subchannel_pool", 1)]
        if ca is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            key, chain = (certificates.read(pair[1]), certificates.read(pair[0])) if pair else (None, None)
            credentials = grpc.ssl_channel_credentials(certificates.read(ca), key, chain)
            self.channel = grpc.secure_channel(address, credentials, options)
        self.stub = stubs.TrainingServiceStub(self.channel)
        self.metadata = [("authorization", "Bearer " + token)] if token else []

    def close(self):
        self.channel.close()

    def stream(self, name, request):
        return getattr(self.stub, name)(request, metadata=self.metadata, timeout=DEADLINE)

    def call(self, name, request):
        method = SERVICE.methods_by_name[name]
        try:
            given = iter([request]) if method.client_streaming else request
            answer = self.stream(name, given)
            return grpc.StatusCode.OK, list(answer) if method.server_streaming else answer
        except grpc.RpcError as error:
            return error.code(), error.details()

    def __getattr__(self, name):
        request = SERVICE.methods_by_name[name].input_type._concrete_class
        return lambda **fields: self.call(name, json_format.ParseDict(fields, request()))


class SecurityTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.clients = []
        self.addCleanup(lambda: [client.close() for client in self.clients])
        self.secrets = []
        self.admin_file = os.path.join(self.folder, "admin.token")

    def guarded(self, daemon_state=None, **config):
        """A daemon that asks for tokens."""
        auth = {"tokens": True, "init_admin_token": self.admin_file, **config.pop("auth", {})}
        daemon = self.daemon(config={"auth": auth, **config}, state_dir=daemon_state)
        self.admin_secret = certificates.read(self.admin_file).decode().strip()
        self.secrets.append(self.admin_secret)
        return daemon

    def client(self, daemon, token=None, **arguments):
        self.clients.append(Client(daemon.grpc_address, token, **arguments))
        return self.clients[-1]

    def admin(self, daemon, **arguments):
        return self.client(daemon, self.admin_secret, **arguments)

    def token(self, admin, user, role, **fields):
        made = self.ok(admin.CreateToken(user=user, role=role, **fields))
        self.secrets.append(made.secret)
        return made

    def ok(self, result):
        self.assertEqual(result[0], grpc.StatusCode.OK, result[1])
        return result[1]

    def refused(self, result, code, text=""):
        self.assertEqual(result[0], code, result[1])
        self.assertIn(text, result[1])
        for secret in self.secrets:
            self.assertNotIn(secret, result[1])

    def audit(self, daemon):
        path = os.path.join(daemon.state_dir, "audit.log")
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        with open(path) as file:
            return [json.loads(line) for line in file]

    def test_methods_that_there_are_not_are_one_in_the_metrics(self):
        """Who has no token chooses their names: each would be a series for ever, and one that is no UTF-8 ends all scraping."""
        daemon = self.guarded()
        client = RawClient(daemon.grpc_address)
        self.addCleanup(client.close)
        paths = [b"/a/\xff\xfe"] + [b"/a/method%d" % n for n in range(20)]
        client.send(PREFACE + frame(SETTINGS) + frame(SETTINGS, ACK) + b"".join(call(2 * n + 1, method=path) for n, path in enumerate(paths)))
        counted = lambda: re.search(r'ampd_rpcs_total\{code="\w+",method="\(other\)"\} 21', daemon.http("/metrics")[1])
        eventually(counted, "the calls in the metrics")
        text = daemon.http("/metrics")[1]
        self.assertNotIn("method1", text)
        if shutil.which("promtool"):
            result = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
            self.assertEqual(result.returncode, 0, result.stderr)

    def assert_no_secret_was_kept(self, daemon):
        """Nor its hexadecimal part, in any file of the state directory or in what the daemon wrote."""
        paths = [daemon.log_path]
        for folder, _, names in os.walk(daemon.state_dir):
            paths += [os.path.join(folder, name) for name in names]
        looked_at = 0
        for path in paths:
            try:
                content = certificates.read(path) if stat.S_ISREG(os.lstat(path).st_mode) else b""
            except FileNotFoundError:
                # A worker that still runs writes checkpoints aside and renames them.
                continue
            looked_at += 1
            for secret in self.secrets:
                self.assertNotIn(secret[5:].encode(), content, path)
        self.assertGreater(looked_at, 3)


class TokenTest(SecurityTest):
    def test_without_a_token_nothing_answers_but_health(self):
        daemon = self.guarded()
        admin = self.admin(daemon)
        revoked = self.token(admin, "ann", "ADMIN")
        expired = self.token(admin, "ann", "ADMIN", lifetime_seconds=1)
        self.ok(admin.RevokeToken(token_id=revoked.token.id))
        short_lived = self.client(daemon, expired.secret)
        eventually(lambda: short_lived.GetServerInfo()[0] == grpc.StatusCode.UNAUTHENTICATED, "the token's end")
        viewer = self.token(admin, "vic", "VIEWER").secret
        for secret, why in ((None, "needs a token"), ("ampd_" + "0" * 64, "not known"), (revoked.secret, "was revoked"),
                            (expired.secret, "expired"), (viewer[:-1], "not known")):
            client = self.client(daemon, secret)
            for method in SERVICE.methods:
                result = client.call(method.name, method.input_type._concrete_class())
                # Declared, but not there yet: it answers nobody.
                if result != (grpc.StatusCode.UNIMPLEMENTED, ""):
                    self.refused(result, grpc.StatusCode.UNAUTHENTICATED, why)
            health = client.channel.unary_unary(HEALTH)
            self.assertEqual(health(b"", timeout=DEADLINE), b"\x08\x01")
            with self.assertRaises(grpc.RpcError) as raised:
                list(client.channel.stream_stream(REFLECTION)(iter([LIST_SERVICES]), timeout=DEADLINE,
                                                              metadata=client.metadata))
            self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAUTHENTICATED)
        client = self.client(daemon, viewer)
        answers = list(client.channel.stream_stream(REFLECTION)(iter([LIST_SERVICES]), timeout=DEADLINE,
                                                                metadata=client.metadata))
        self.assertIn(b"ampd.v1.TrainingService", b"".join(answers))
        self.assert_no_secret_was_kept(daemon)

    def test_roles_bound_what_a_user_may_do(self):
        daemon = self.guarded()
        admin = self.admin(daemon)
        viewer = self.client(daemon, self.token(admin, "ann", "VIEWER").secret)
        submitter = self.client(daemon, self.token(admin, "ann", "SUBMITTER").secret)
        denied = grpc.StatusCode.PERMISSION_DENIED
        job = glyphs_job(steps=3)
        self.refused(viewer.CreateJob(spec=job), denied, "CreateJob needs the role SUBMITTER; ann is VIEWER")
        self.refused(viewer.CreateJob(spec=job, validate_only=True), denied)
        mine = self.ok(submitter.CreateJob(spec=job))
        self.assertEqual(mine.user, "ann")
        self.assertEqual(self.ok(viewer.GetJob(job_id=mine.id)).id, mine.id)
        self.refused(viewer.CancelJob(job_id=mine.id), denied)
        for client in (viewer, submitter):
            self.refused(client.DrainDevice(device_id="cpu-0", reason="x"), denied, "needs the role ADMIN")
            self.refused(client.DrainServer(), denied)
            self.refused(client.CreateToken(user="ann", role="ADMIN"), denied)
            self.refused(client.ListTokens(), denied)
        self.ok(viewer.WatchJob(job_id=mine.id))
        self.assertEqual(state_name(self.ok(viewer.GetJob(job_id=mine.id)).state), "SUCCEEDED")
        # The next daemon knows them all.
        daemon.kill()
        daemon.start()
        self.assertEqual(self.ok(self.client(daemon, submitter.metadata[0][1][7:]).GetJob(job_id=mine.id)).user, "ann")
        self.refused(self.client(daemon).GetJob(job_id=mine.id), grpc.StatusCode.UNAUTHENTICATED)

    def test_anothers_job_is_not_there(self):
        daemon = self.guarded()
        admin = self.admin(daemon)
        ann, bob = (self.client(daemon, self.token(admin, user, "SUBMITTER").secret) for user in ("ann", "bob"))
        job = self.ok(ann.CreateJob(spec=glyphs_job(steps=4, every_steps=2), request_id="r"))
        self.ok(ann.WatchJob(job_id=job.id))
        sweep = self.ok(ann.CreateSweep(spec=glyphs_job(steps=2, sweep={"list": [{"seed": 1}, {"seed": 2}]})))
        own = {"job_id": job.id, "sweep_id": sweep.id}
        reached = set()
        for method in SERVICE.methods:
            for field in set(own) & set(method.input_type.fields_by_name):
                reached.add(method.name)
                request = method.input_type._concrete_class(**{field: own[field]})
                if "name" in method.input_type.fields_by_name:
                    request.name = "x"
                self.refused(bob.call(method.name, request), grpc.StatusCode.NOT_FOUND, own[field])
        self.assertLessEqual({"GetJob", "WatchJob", "CancelJob", "DownloadCheckpoint", "ExportModel", "CancelSweep",
                              "RetryJob", "UpdateJob", "ListCheckpoints", "CheckpointJob"}, reached)
        for name in ("after", "after_ok"):
            self.refused(bob.CreateJob(spec=glyphs_job(**{name: [job.id]})), grpc.StatusCode.INVALID_ARGUMENT, "no job")
        start = glyphs_job(start_from={"job_id": job.id})
        for result in (bob.CreateJob(spec=start), bob.PlanJob(spec=start),
                       bob.CreateSweep(spec=dict(start, sweep={"list": [{"seed": 1}]}))):
            self.refused(result, grpc.StatusCode.INVALID_ARGUMENT, "no job")
        self.assertEqual(list(self.ok(bob.ListJobs()).jobs), [])
        for caller, request, seen in ((ann, {}, [sweep.id]), (admin, {}, [sweep.id]), (admin, {"user": "ann"}, [sweep.id]),
                                      (admin, {"user": "bob"}, []), (bob, {}, []), (bob, {"user": "ann"}, [])):
            self.assertEqual([one.id for one in self.ok(caller.ListSweeps(**request)).sweeps], seen)
        self.assertNotEqual(self.ok(bob.CreateJob(spec=glyphs_job(steps=4, every_steps=2), request_id="r")).id, job.id)
        self.assertEqual(len(self.ok(ann.ListJobs()).jobs), 3)
        self.assertEqual(len(self.ok(admin.ListJobs()).jobs), 4)
        self.assertEqual(self.ok(admin.GetJob(job_id=job.id)).user, "ann")
        self.assertGreater(len(self.ok(ann.DownloadCheckpoint(job_id=job.id))), 0)
        self.ok(ann.CreateJob(spec=dict(start, train={"steps": 1, "batch_size": 8}), validate_only=True))

    def test_datasets_are_everybodys_to_train_on_and_their_users_to_delete(self):
        rows = b"x,y\n" + b"".join(b"%d,%d\n" % (i % 7, 2 * (i % 7)) for i in range(64))
        sent = [api.UploadDatasetRequest(name=name, file="line.csv", file_size=len(rows), data=rows,
                                         file_sha256=hashlib.sha256(rows).hexdigest(), commit=name != "begun")
                for name in ("old", "d", "begun")]
        open_to_all = self.daemon()
        self.ok(self.client(open_to_all).call("UploadDataset", sent[0]))
        self.assertEqual(open_to_all.terminate(), 0)
        daemon = self.guarded(daemon_state=open_to_all.state_dir)
        admin = self.admin(daemon)
        secrets = {user: self.token(admin, user, "SUBMITTER").secret for user in ("ann", "bob")}
        ann, bob = (self.client(daemon, secret) for secret in secrets.values())
        for request in sent[1:]:
            self.assertEqual(self.ok(ann.call("UploadDataset", request)).user, "ann")
        daemon.kill()
        daemon.start()
        ann, bob, admin = (self.client(daemon, secret) for secret in (*secrets.values(), self.admin_secret))
        denied = grpc.StatusCode.PERMISSION_DENIED
        self.assertEqual([(d.name, d.user) for d in self.ok(bob.ListDatasets()).datasets],
                         [("begun", "ann"), ("d", "ann"), ("old", "")])
        self.refused(bob.call("UploadDataset", sent[2]), denied, "user ann's")
        for name in ("d", "begun", "old"):
            self.refused(bob.DeleteDataset(name=name), denied, "only they or an administrator")
        spec = glyphs_job("csv", steps=1_000_000)
        spec["model"] = {"layers": [{"name": "head", "dense": {"units": 1}}], "loss": {"mean_squared_error": {}}}
        spec["data"] = {"train": {"csv": {"path": "dataset:d/line.csv", "targets": ["y"]}}}
        job = self.ok(bob.CreateJob(spec=spec))
        for event in (watch := bob.stream("WatchJob", api.WatchJobRequest(job_id=job.id))):
            if event.HasField("step"):
                watch.cancel()
                break
        used = grpc.StatusCode.FAILED_PRECONDITION
        code, text = ann.DeleteDataset(name="d")
        self.assertEqual((code, text), (used, "another user's job names dataset d and has not ended"))
        self.refused(admin.DeleteDataset(name="d"), used, f"job {job.id} names dataset d")
        self.ok(bob.CancelJob(job_id=job.id))
        self.ok(bob.WatchJob(job_id=job.id))
        self.ok(ann.DeleteDataset(name="d"))
        self.ok(ann.DeleteDataset(name="begun"))
        self.ok(admin.DeleteDataset(name="old"))
        self.assertEqual(list(self.ok(admin.ListDatasets()).datasets), [])

    def test_what_changes_something_is_written_down(self):
        daemon = self.guarded()
        admin = self.admin(daemon)
        made = self.token(admin, "ann", "SUBMITTER")
        ann = self.client(daemon, made.secret)
        job = self.ok(ann.CreateJob(spec=glyphs_job("not-for-the-log", steps=2)))
        self.ok(ann.WatchJob(job_id=job.id))
        self.refused(ann.CancelJob(job_id="01zzzzzzzzzzzzzzzzzzzzzzzz"), grpc.StatusCode.NOT_FOUND)
        self.refused(ann.DrainDevice(device_id="cpu-0\n", reason="x"), grpc.StatusCode.PERMISSION_DENIED)
        self.refused(self.client(daemon).CancelJob(job_id=job.id), grpc.StatusCode.UNAUTHENTICATED)
        # Reads, and what only checks, are no changes.
        self.ok(ann.CreateJob(spec=glyphs_job(steps=2), validate_only=True))
        self.ok(ann.ListJobs())
        # What was answered is on record, however the daemon ends.
        daemon.kill()
        lines = self.audit(daemon)
        brief = sorted((line.get("user", ""), line["method"], line.get("resource", ""), line["code"]) for line in lines)
        self.assertEqual(brief, [("", "CancelJob", job.id, "UNAUTHENTICATED"),
                                 ("admin", "CreateToken", "ann", "OK"),
                                 ("ann", "CancelJob", "01zzzzzzzzzzzzzzzzzzzzzzzz", "NOT_FOUND"),
                                 ("ann", "CreateJob", "", "OK"),
                                 ("ann", "DrainDevice", "cpu-0\n", "PERMISSION_DENIED")])
        created = next(line for line in lines if line["method"] == "CreateJob")
        self.assertEqual((created["token"], created["role"], created["made"]), (made.token.id, "SUBMITTER", job.id))
        self.assertRegex(created["peer"], r"^ipv4:127\.0\.0\.1:\d+$")
        self.assertNotIn("not-for-the-log", json.dumps(lines))
        self.assert_no_secret_was_kept(daemon)

    def test_strangers_do_not_push_the_lines_of_others_out(self):
        daemon = self.guarded(audit_log_bytes=20_000)
        made = self.token(self.admin(daemon), "ann", "SUBMITTER")
        stranger = self.client(daemon, "wrong")
        for _ in range(500):
            self.refused(stranger.CancelJob(job_id="0" * 26), grpc.StatusCode.UNAUTHENTICATED)
        self.refused(self.client(daemon, made.secret).CancelJob(job_id="0" * 26), grpc.StatusCode.NOT_FOUND)
        self.assertEqual(daemon.terminate(), 0)
        lines = self.audit(daemon)
        self.assertEqual([line["user"] for line in lines if "user" in line], ["admin", "ann"])
        self.assertEqual(sum(line.get("left_out", 1) for line in lines if "user" not in line), 500)
        self.assertLess(len(lines), 100)
        self.assertFalse(os.path.exists(os.path.join(daemon.state_dir, "audit.log.1")))

    def test_the_state_directory_is_no_data(self):
        state = os.path.join(self.folder, "data", "state")
        os.makedirs(state)
        os.symlink(os.path.join(self.folder, "data"), os.path.join(self.folder, "link"))
        auth = {"tokens": True, "init_admin_token": self.admin_file}
        daemon = ampd_process.Daemon(state_dir=state, config={"auth": auth})
        self.daemons.append(daemon)
        daemon.data_roots = [os.path.join(self.folder, "link")]
        daemon.spawn()
        self.assertEqual(daemon.process.wait(timeout=DEADLINE), 2)
        self.assertIn("holds state_dir", daemon.log())

    def test_a_revoked_tokens_watch_ends(self):
        daemon = self.guarded()
        admin = self.admin(daemon)
        made = self.token(admin, "ann", "SUBMITTER")
        ann = self.client(daemon, made.secret)
        job = self.ok(ann.CreateJob(spec=glyphs_job(steps=1000000)))
        watch = ann.stream("WatchJob", api.WatchJobRequest(job_id=job.id))
        next(watch)
        self.ok(admin.RevokeToken(token_id=made.token.id))
        with self.assertRaises(grpc.RpcError) as raised:
            list(watch)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAUTHENTICATED)
        self.ok(admin.CancelJob(job_id=job.id))

    def test_ampctl_makes_lists_and_revokes_tokens(self):
        daemon = self.guarded()

        def ctl(code, *arguments, **environment):
            result = subprocess.run([ampd_process.program("ampctl"), *arguments], text=True, stdin=subprocess.DEVNULL,
                                    env=dict(os.environ, AMPD_SERVER=daemon.grpc_address, **environment),
                                    capture_output=True, timeout=DEADLINE)
            self.assertEqual(result.returncode, code, result.stdout + result.stderr)
            return result

        self.assertIn("not authorised", ctl(5, "list").stderr)
        made = ctl(0, "tokens", "create", "--user", "ann", "--role", "submitter", "--lifetime", "90d",
                   AMPD_TOKEN_FILE=self.admin_file)
        secret = made.stdout.strip()
        self.secrets.append(secret)
        self.assertRegex(secret, "^ampd_[0-9a-f]{64}$")
        self.assertNotIn(secret, made.stderr)
        token_id = re.search(r"token (\S+) ann SUBMITTER", made.stderr).group(1)
        own_file = os.path.join(self.folder, "ann.token")
        with open(own_file, "w") as file:
            file.write(made.stdout)
        job = self.job_file(glyphs_job(steps=2))
        ctl(0, "submit", job, "--watch", AMPD_TOKEN=secret)
        self.assertIn("glyphs", ctl(0, "--token-file", own_file, "list").stdout)
        # A flag wins over the environment, and there the token over the file.
        ctl(0, "--token-file", own_file, "list", AMPD_TOKEN="wrong")
        ctl(0, "list", AMPD_TOKEN=secret, AMPD_TOKEN_FILE=job)
        ctl(5, "--token-file", own_file, "tokens", "list")
        listed = ctl(0, "--token-file", self.admin_file, "tokens", "list").stdout
        self.assertIn("ann", listed)
        self.assertIn(token_id, listed)
        ctl(0, "--token-file", self.admin_file, "tokens", "revoke", token_id[:20])
        self.assertIn("revoked", ctl(5, "list", AMPD_TOKEN=secret).stderr)
        kept = os.path.join(self.folder, "kept.token")
        create = ("--token-file", self.admin_file, "tokens", "create", "--user", "ann", "--role", "viewer", "--out", kept)
        self.assertEqual(ctl(0, *create).stdout, "")
        self.assertEqual(stat.S_IMODE(os.stat(kept).st_mode), 0o600)
        self.assertIn("File exists", ctl(2, *create).stderr)
        self.assertEqual(ctl(0, "--token-file", kept, "list").stderr, "")
        os.chmod(kept, 0o644)
        self.assertIn(f"others may read the token in {kept}", ctl(0, "--token-file", kept, "list").stderr)
        # A secret that got out is enough to revoke it, and is not written down for that.
        self.secrets.append(certificates.read(kept).decode().strip())
        ctl(0, "--token-file", self.admin_file, "tokens", "revoke", self.secrets[-1])
        self.assertIn("revoked", ctl(5, "--token-file", kept, "list").stderr)
        ctl(2, "list", AMPD_TOKEN="two words")
        ctl(2, "--token-file", os.path.join(self.folder, "none"), "list")
        # To another machine nothing goes in plain text.
        away = ctl(2, "--server", "192.0.2.1:7070", "list", AMPD_TOKEN=secret)
        self.assertIn("in plain text", away.stderr)
        self.assertNotIn(secret, away.stderr)
        self.assert_no_secret_was_kept(daemon)


class TlsTest(SecurityTest):
    def setUp(self):
        super().setUp()
        self.authority = certificates.Authority(os.path.join(self.folder, "ca"))
        self.pair = [os.path.join(self.folder, name) for name in ("server.pem", "server.key")]
        certificates.install(self.server_pair(self.authority), *self.pair)
        self.tls = {"certificate": self.pair[0], "private_key": self.pair[1]}

    @staticmethod
    def server_pair(authority):
        return authority.issue("ampd", hosts=("127.0.0.1", "localhost"))

    def test_only_clients_that_speak_tls_and_trust_the_server_get_through(self):
        daemon = self.guarded(tls=self.tls)
        self.ok(self.admin(daemon, ca=self.authority.certificate).GetServerInfo())
        stranger = certificates.Authority(os.path.join(self.folder, "stranger"))
        self.assertEqual(self.admin(daemon, ca=stranger.certificate).GetServerInfo()[0], grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(self.admin(daemon).GetServerInfo()[0], grpc.StatusCode.UNAVAILABLE)
        self.refused(self.client(daemon, ca=self.authority.certificate).GetServerInfo(),
                     grpc.StatusCode.UNAUTHENTICATED)
        token = ("--token-file", self.admin_file)
        self.assertEqual(daemon.ctl(*token, "--ca", self.authority.certificate, "devices").returncode, 0)
        self.assertEqual(daemon.ctl(*token, "devices").returncode, 4)
        self.assertEqual(daemon.ctl(*token, "--ca", stranger.certificate, "devices").returncode, 4)
        self.assertEqual(daemon.ctl("--ca", self.pair[1] + ".none", "devices").returncode, 2)
        self.assertTrue(self.handshake(daemon, ssl.TLSVersion.TLSv1_2))
        self.assertFalse(self.handshake(daemon, ssl.TLSVersion.TLSv1_1))

    def handshake(self, daemon, newest):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.authority.certificate)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.set_alpn_protocols(["h2"])
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = newest
        host, port = daemon.grpc_address.rsplit(":", 1)
        try:
            with socket.create_connection((host, int(port)), timeout=DEADLINE) as plain:
                with context.wrap_socket(plain, server_hostname=host):
                    return True
        except (ssl.SSLError, ConnectionError):
            return False

    def test_clients_show_certificates_where_those_are_asked_for(self):
        people = certificates.Authority(os.path.join(self.folder, "people"), "people")
        daemon = self.guarded(tls={**self.tls, "client_ca": people.certificate}, auth={"certificate_role": "SUBMITTER"})
        ca = self.authority.certificate
        self.assertEqual(self.admin(daemon, ca=ca).GetServerInfo()[0], grpc.StatusCode.UNAVAILABLE)
        foreign = self.authority.issue("ann")
        self.assertEqual(self.admin(daemon, ca=ca, pair=foreign).GetServerInfo()[0], grpc.StatusCode.UNAVAILABLE)
        ann = people.issue("ann")
        mine = self.ok(self.client(daemon, ca=ca, pair=ann).CreateJob(spec=glyphs_job(steps=2)))
        self.assertEqual(mine.user, "ann")
        self.refused(self.client(daemon, ca=ca, pair=people.issue("bob")).GetJob(job_id=mine.id),
                     grpc.StatusCode.NOT_FOUND)
        self.refused(self.client(daemon, ca=ca, pair=ann).ListTokens(), grpc.StatusCode.PERMISSION_DENIED)
        self.refused(self.client(daemon, ca=ca, pair=people.issue("two words")).GetServerInfo(),
                     grpc.StatusCode.UNAUTHENTICATED, "common name")
        # A token says more than a certificate; a bad one is not passed over for it.
        self.assertEqual(self.ok(self.admin(daemon, ca=ca, pair=ann).GetJob(job_id=mine.id)).user, "ann")
        self.ok(self.admin(daemon, ca=ca, pair=ann).ListTokens())
        self.refused(self.client(daemon, "wrong", ca=ca, pair=ann).GetServerInfo(), grpc.StatusCode.UNAUTHENTICATED)
        shown = ("--ca", ca, "--cert", ann[0], "--key", ann[1])
        self.assertIn("glyphs", daemon.ctl(*shown, "list").stdout)
        self.assertEqual(daemon.ctl(*shown[:4], "list").returncode, 2)

    def test_the_watch_of_an_expired_certificate_ends(self):
        people = certificates.Authority(os.path.join(self.folder, "people"), "people")
        daemon = self.guarded(tls={**self.tls, "client_ca": people.certificate}, auth={"certificate_role": "SUBMITTER"})
        ann = self.client(daemon, ca=self.authority.certificate, pair=people.issue("ann", seconds=8))
        job = self.ok(ann.CreateJob(spec=glyphs_job(steps=1000000)))
        watch = ann.stream("WatchJob", api.WatchJobRequest(job_id=job.id))
        next(watch)
        with self.assertRaises(grpc.RpcError) as raised:
            for _ in watch:
                pass
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAUTHENTICATED)
        self.assertIn("the certificate expired at ", raised.exception.details())
        # Nor does the connection, which it was good for, let in anything more.
        self.refused(ann.GetJob(job_id=job.id), grpc.StatusCode.UNAUTHENTICATED, "the certificate expired at ")

    def test_a_certificate_is_replaced_while_a_watch_runs(self):
        daemon = self.guarded(tls=self.tls)
        admin = self.admin(daemon, ca=self.authority.certificate)
        job = self.ok(admin.CreateJob(spec=glyphs_job(steps=1000000)))
        watch = admin.stream("WatchJob", api.WatchJobRequest(job_id=job.id))
        seen = next(watch).sequence
        renewed = certificates.Authority(os.path.join(self.folder, "renewed"), "renewed")
        certificates.install(self.server_pair(renewed), *self.pair)
        self.assertEqual(self.admin(daemon, ca=self.authority.certificate).GetServerInfo()[0],
                         grpc.StatusCode.UNAVAILABLE)
        self.ok(self.admin(daemon, ca=renewed.certificate).GetServerInfo())
        # What cannot be used leaves the one before in use, and is told.
        with open(self.pair[0] + ".new", "w") as file:
            file.write("no certificate")
        os.replace(self.pair[0] + ".new", self.pair[0])
        self.ok(self.admin(daemon, ca=renewed.certificate).GetServerInfo())
        os.remove(self.pair[1])
        self.ok(self.admin(daemon, ca=renewed.certificate).GetServerInfo())
        with open(daemon.log_path) as file:
            log = file.read()
        self.assertIn("holds no certificate in PEM", log)
        self.assertIn("those of before stay in use", log)
        # The watch never noticed.
        for _ in range(20):
            event = next(watch)
            self.assertEqual(event.first_sequence, seen + 1)
            seen = event.sequence
        self.ok(admin.CancelJob(job_id=job.id))
        self.assert_no_secret_was_kept(daemon)


class BeyondLoopbackTest(SecurityTest):
    def begin(self, **config):
        daemon = ampd_process.Daemon(config=config)
        daemon.grpc_address = "0.0.0.0:0"
        self.daemons.append(daemon)
        return daemon

    def expect_refusal(self, lacks, **config):
        daemon = self.begin(**config)
        daemon.spawn()
        self.assertEqual(daemon.process.wait(timeout=DEADLINE), 2)
        self.assertIn(f"there are no {lacks}", daemon.log())

    def test_needs_tls_and_tokens_both_or_insecure(self):
        authority = certificates.Authority(os.path.join(self.folder, "ca"))
        pair = authority.issue("ampd", hosts=("127.0.0.1",))
        tls = {"certificate": pair[0], "private_key": pair[1]}
        auth = {"tokens": True, "init_admin_token": self.admin_file}
        self.expect_refusal("TLS and tokens")
        self.expect_refusal("tokens", tls=tls)
        self.expect_refusal("TLS", auth=auth)
        daemon = self.begin(tls=tls, auth=auth).start()
        with open(daemon.log_path) as file:
            self.assertNotIn("insecure", file.read())
        port = daemon.grpc_address.rsplit(":", 1)[1]
        self.clients.append(Client(f"127.0.0.1:{port}", certificates.read(self.admin_file).decode().strip(),
                                   ca=authority.certificate))
        self.ok(self.clients[-1].GetServerInfo())
        daemon.kill()
        for config, warning in (({}, "without TLS and tokens"), ({"auth": auth}, "without TLS (insecure)")):
            daemon = self.begin(insecure=True, **config)
            for start in (1, 2):
                daemon.start()
                with open(daemon.log_path) as file:
                    self.assertEqual(file.read().count(warning), start)
                daemon.kill()


if __name__ == "__main__":
    ampd_process.main()
