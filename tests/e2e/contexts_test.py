"""`ampctl contexts`: which server is talked to and what it is shown, told by servers that write down what they get."""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
import unittest

import grpc

import ampd_process
import certificates
from fake_training_service import FakeTrainingService, serving

SECRET = "ampd_secret_of_the_context"


class ContextsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ampd-e2e-contexts-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.config = os.path.join(self.folder, "settings/ampctl/config.yaml")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(("AMPD_", "AMPCTL_"))}
        self.environment["XDG_CONFIG_HOME"] = os.path.join(self.folder, "settings")
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.services = []

    def server(self, credentials=None):
        """(address, what it was asked)."""
        service = FakeTrainingService()
        return self.stack.enter_context(serving(service, credentials)), service

    def ctl(self, code, *arguments, input="", cwd=None, **environment):
        result = subprocess.run([ampd_process.program("ampctl"), *arguments], env={**self.environment, **environment}, text=True,
                                input=input, capture_output=True, timeout=ampd_process.DEADLINE, cwd=cwd)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}\n{result.stderr}")
        self.assertNotIn(SECRET, result.stdout + result.stderr)
        return result

    def shown(self, service):
        """The tokens that the server was shown, each call's."""
        return [metadata.get("authorization") for _, _, metadata in service.calls]

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def test_they_are_added_used_shown_and_removed(self):
        first, first_service = self.server()
        second, second_service = self.server()
        self.assertIn("lab added; it is the current context",
                      self.ctl(0, "contexts", "add", "lab", "--server", first, "--token-from-input", input=SECRET + "\n").stdout)
        self.assertEqual(stat.S_IMODE(os.stat(self.config).st_mode), 0o600)
        self.file("token", "ampd_of_the_file\n")
        # A path is the adding shell's, wherever the context is used.
        self.ctl(0, "contexts", "add", "home", "--server", second, "--token-file", "token", cwd=self.folder)
        rows = [line.split() for line in self.ctl(0, "contexts", "list").stdout.splitlines()[1:]]
        token_file = os.path.join(os.path.realpath(self.folder), "token")
        self.assertEqual(rows, [["home", second, "no", token_file], ["*", "lab", first, "no", "token"]])
        self.ctl(0, "get", "01aaaaaa")
        self.ctl(0, "--context", "home", "get", "01aaaaaa")
        self.ctl(0, "get", "01aaaaaa", AMPCTL_CONTEXT="home")
        self.assertIn("home is the current context", self.ctl(0, "contexts", "use", "home").stdout)
        self.ctl(0, "get", "01aaaaaa")
        self.assertEqual(self.shown(first_service), [f"Bearer {SECRET}"])
        self.assertEqual(self.shown(second_service), ["Bearer ampd_of_the_file"] * 3)
        self.assertIn("token: REDACTED", self.ctl(0, "contexts", "show", "lab").stdout)
        all_of_them = json.loads(self.ctl(0, "contexts", "list", "-o", "json").stdout)
        self.assertEqual(all_of_them["current_context"], "home")
        self.assertEqual(all_of_them["contexts"]["lab"]["token"], "REDACTED")
        self.ctl(0, "contexts", "remove", "home")
        self.assertIn("there is no current context", self.ctl(2, "contexts", "show").stderr)
        self.assertEqual(len(self.ctl(0, "contexts", "list").stdout.splitlines()), 2)

    def test_an_option_holds_before_the_environment_and_that_before_the_context(self):
        address, service = self.server()
        self.ctl(0, "contexts", "add", "lab", "--server", address, "--token-from-input", input=SECRET)
        option = self.file("option", "of_the_option")
        self.ctl(0, "get", "01aaaaaa", AMPD_TOKEN="of_the_environment")
        self.ctl(0, "get", "01aaaaaa", "--token-file", option, AMPD_TOKEN="of_the_environment")
        self.ctl(0, "get", "01aaaaaa", AMPD_TOKEN_FILE=option)
        # The context's own server, named.
        self.ctl(0, "get", "01aaaaaa", "--server", address)
        self.assertEqual(self.shown(service), ["Bearer of_the_environment", "Bearer of_the_option", "Bearer of_the_option",
                                               f"Bearer {SECRET}"])

    def test_a_token_goes_to_no_other_server(self):
        address, _ = self.server()
        other, service = self.server()
        self.ctl(0, "contexts", "add", "lab", "--server", address, "--token-from-input", input=SECRET)
        self.ctl(0, "get", "01aaaaaa", "--server", other)
        self.ctl(0, "get", "01aaaaaa", AMPD_SERVER=other)
        self.assertEqual(self.shown(service), [None, None])
        # Unless that is said.
        self.ctl(0, "get", "01aaaaaa", "--context", "lab", "--server", other)
        self.assertEqual(self.shown(service)[2], f"Bearer {SECRET}")

    def test_tls_and_a_certificate_come_from_the_context(self):
        authority = certificates.Authority(os.path.join(self.folder, "authority"))
        chain, key = authority.issue("server")
        pair = authority.issue("client")
        credentials = grpc.ssl_server_credentials([(certificates.read(key), certificates.read(chain))],
                                                  certificates.read(authority.certificate), True)
        address, service = self.server(credentials)
        self.ctl(0, "contexts", "add", "lab", "--server", address, "--ca", authority.certificate, "--cert", pair[0], "--key", pair[1],
                 "--token-from-input", input=SECRET)
        self.ctl(0, "get", "01aaaaaa")
        self.assertEqual(self.shown(service), [f"Bearer {SECRET}"])
        self.ctl(4, "get", "01aaaaaa", "--server", address, "--context", "lab", "--ca", self.other_authority())

    def other_authority(self):
        return certificates.Authority(os.path.join(self.folder, "other")).certificate

    def test_what_is_wrong_is_said(self):
        address, _ = self.server()
        self.ctl(0, "contexts", "add", "lab", "--server", address, "--token-from-input", input=SECRET)
        with open(self.config) as file:
            text = file.read()
        for code, says, arguments in (
                (2, "no context 'lap'; did you mean lab?", ("--context", "lap", "list")),
                (2, "there is a context lab already", ("contexts", "add", "lab", "--server", address)),
                (2, "is no name for a context", ("contexts", "add", "a b", "--server", address)),
                (2, "expected HOST:PORT", ("contexts", "add", "x", "--server", "nowhere")),
                (2, "cannot read", ("contexts", "add", "x", "--server", address, "--token-file", "/none")),
                (2, "belong together", ("contexts", "add", "x", "--server", address, "--cert", "/none")),
                (2, "in plain text", ("contexts", "add", "x", "--server", "trainer:7070", "--token-from-input")),
                (2, "there is none", ("contexts", "add", "x", "--server", address, "--token-from-input"))):
            with self.subTest(says=says):
                given = SECRET if "plain" in says else ""
                self.assertIn(says, self.ctl(code, *arguments, input=given).stderr)
        with open(self.config) as file:
            self.assertEqual(file.read(), text)
        os.chmod(self.config, 0o644)
        self.assertIn(f"chmod 600 {self.config}", self.ctl(2, "get", "01aaaaaa").stderr)
        os.chmod(self.config, 0o600)
        for broken, says in (("contexts: {lab: {sever: x}}", "did you mean server?"), ("contexts: [", "config.yaml:"),
                             (f"contexts: {{lab: {{token: [{SECRET}]}}}}", "token: must be a string"),
                             ("contexts: {lab: {token: 12345678}}", "token: must be a string")):
            self.file("settings/ampctl/config.yaml", broken)
            error = self.ctl(2, "get", "01aaaaaa").stderr
            self.assertIn(says, error)
            self.assertNotIn("12345678", error)
        self.ctl(0, "--help")


if __name__ == "__main__":
    ampd_process.main()
