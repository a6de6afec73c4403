"""The HTTP port by TLS: the page, the API and the metrics, renewed certificates, clients' certificates."""

import contextlib
import http.client
import json
import os
import socket
import ssl

import ampd_process
import certificates
from ampd_process import DaemonTest, eventually, glyphs_job

TIMEOUT = 60


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self):
        return json.loads(self.body)


class HttpsTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.authority = certificates.Authority(os.path.join(self.folder, "authority"))
        self.certificate, self.key = self.issue()
        self.tls = {"certificate": self.certificate, "private_key": self.key, "http": True}
        self.admin_file = os.path.join(self.folder, "admin.token")
        self.auth = {"tokens": True, "init_admin_token": self.admin_file}

    def issue(self, **arguments):
        return self.authority.issue("ampd", hosts=("localhost", "127.0.0.1"), **arguments)

    def bearer(self):
        return {"Authorization": "Bearer " + certificates.read(self.admin_file).decode().strip()}

    def trust(self, pair=None):
        context = ssl.create_default_context(cafile=self.authority.certificate)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    def connect(self, daemon, pair=None):
        return http.client.HTTPSConnection(daemon.http_address, timeout=TIMEOUT, context=self.trust(pair))

    def ask(self, daemon, path, method="GET", headers=None, body=None, pair=None):
        with contextlib.closing(self.connect(daemon, pair)) as connection:
            connection.request(method, path, body, headers or {})
            return Answer(connection.getresponse())

    def open_daemon(self, **config):
        """One whose HTTP port other machines reach."""
        daemon = ampd_process.Daemon(config=config)
        self.daemons.append(daemon)
        daemon.http_address = daemon.http_address.replace("127.0.0.1", "0.0.0.0")
        daemon.start()
        daemon.http_address = daemon.http_address.replace("0.0.0.0", "127.0.0.1")
        return daemon

    def serial(self, daemon):
        """Of the certificate that the next connection sees."""
        with socket.create_connection(daemon.http_address.split(":"), TIMEOUT) as plain:
            with self.trust().wrap_socket(plain, server_hostname="localhost") as connection:
                return int(connection.getpeercert()["serialNumber"], 16)

    def test_page_api_and_metrics_are_there_by_tls_alone(self):
        daemon = self.daemon(config={"tls": self.tls, "auth": self.auth})
        page = self.ask(daemon, "/")
        self.assertEqual((page.status, page.headers.get_content_type()), (200, "text/html"))
        self.assertIn(b"ampd_build_info", self.ask(daemon, "/metrics").body)
        self.assertEqual(self.ask(daemon, "/api/v1/jobs").status, 401)
        made = self.ask(daemon, "/api/v1/jobs", headers=self.bearer())
        self.assertEqual((made.status, made.json()), (200, {"jobs": [], "next_page_token": ""}))
        status, text = daemon.http("/healthz")
        self.assertEqual(status, 400)
        self.assertIn("https://", text)
        with self.assertRaises(ssl.SSLCertVerificationError):
            with contextlib.closing(http.client.HTTPSConnection(daemon.http_address, timeout=TIMEOUT)) as stranger:
                stranger.request("GET", "/healthz")

    def test_a_browser_keeps_its_session_to_tls(self):
        daemon = self.daemon(config={"tls": self.tls, "auth": self.auth})
        secret = self.bearer()["Authorization"].removeprefix("Bearer ")
        opened = self.ask(daemon, "/api/v1/session", "POST", {"Content-Type": "application/json",
                                                              "Origin": f"https://{daemon.http_address}"},
                          json.dumps({"token": secret}))
        self.assertEqual(opened.status, 200, opened.body)
        cookie = opened.headers["Set-Cookie"]
        self.assertIn("; Secure", cookie)
        asked = self.ask(daemon, "/api/v1/session", headers={"Cookie": cookie.split(";")[0]})
        self.assertEqual(asked.json()["user"], "admin")

    def test_a_job_is_watched_as_it_runs(self):
        daemon = self.daemon(config={"tls": self.tls})
        job_file = self.job_file(glyphs_job(steps=200))
        submitted = daemon.ctl("--ca", self.authority.certificate, "submit", job_file, "-q")
        job = submitted.stdout.strip()
        with contextlib.closing(self.connect(daemon)) as connection:
            connection.request("GET", f"/api/v1/jobs/{job}/events", headers={"Accept": "text/event-stream"})
            stream = connection.getresponse()
            states = []
            while not states or states[-1] != "SUCCEEDED":
                line = stream.readline().decode()
                self.assertNotEqual(line, "", states)
                if line.startswith("data:") and "state_change" in line:
                    states.append(json.loads(line[5:])["state_change"]["to"])
        files = self.ask(daemon, f"/api/v1/jobs/{job}/checkpoints").json()["checkpoints"]
        path = f"/api/v1/jobs/{job}/checkpoints/{files[0]['name']}/model.safetensors"
        self.assertGreater(len(self.ask(daemon, path).body), 1000)

    def test_others_reach_the_api_with_tls_and_tokens(self):
        guarded = self.open_daemon(tls=self.tls, auth=self.auth)
        self.assertEqual(self.ask(guarded, "/api/v1/jobs", headers=self.bearer()).status, 200)
        refused = self.ask(self.open_daemon(tls=self.tls), "/api/v1/jobs")
        self.assertEqual(refused.status, 403)
        self.assertIn("without tokens", refused.json()["message"])

    def test_renewed_certificates_hold_from_the_next_connection_on(self):
        daemon = self.daemon(config={"tls": self.tls})
        before = self.serial(daemon)
        renewed = self.issue()
        certificates.install(renewed, self.certificate, self.key)
        self.assertEqual(self.serial(daemon), before + 1)
        with open(self.certificate, "w") as file:
            file.write("-----BEGIN CERTIFICATE-----\n")
        self.assertEqual(self.serial(daemon), before + 1)
        eventually(lambda: "http: TLS: the files changed and cannot be used" in daemon.log(), "the warning")
        self.assertEqual(self.ask(daemon, "/healthz").status, 200)

    def test_clients_show_a_certificate_where_one_is_asked_for(self):
        people = certificates.Authority(os.path.join(self.folder, "people"), "people")
        own = people.issue("ann")
        stranger = certificates.Authority(os.path.join(self.folder, "others"), "others").issue("eve")
        daemon = self.daemon(config={"tls": {**self.tls, "client_ca": people.certificate}})
        self.assertEqual(self.ask(daemon, "/api/v1/jobs", pair=own).status, 200)
        self.assertIn(b"ampd_build_info", self.ask(daemon, "/metrics", pair=own).body)
        for path in ("/api/v1/jobs", "/metrics", "/"):
            self.assertEqual(self.ask(daemon, path).status, 403, path)
        self.assertEqual(self.ask(daemon, "/healthz").status, 200)
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.ask(daemon, "/healthz", pair=stranger)

    def test_what_is_trusted_need_not_be_a_root(self):
        """As over gRPC."""
        own = certificates.Authority(os.path.join(self.folder, "people"), "people").issue("ann")
        daemon = self.daemon(config={"tls": {**self.tls, "client_ca": own[0]}})
        self.assertEqual(self.ask(daemon, "/api/v1/jobs", pair=own).status, 200)
        self.assertEqual(daemon.ctl("--ca", self.authority.certificate, "--cert", own[0], "--key", own[1], "devices").returncode, 0)

    def test_files_that_will_not_do_keep_the_daemon_from_starting(self):
        other = self.issue()
        daemon = ampd_process.Daemon(config={"tls": {**self.tls, "private_key": other[1]}})
        self.daemons.append(daemon)
        daemon.spawn()
        self.assertNotEqual(daemon.process.wait(TIMEOUT), 0)
        self.assertIn("is not the key of the certificate", daemon.log())


if __name__ == "__main__":
    ampd_process.main()
