"""The files of the web page as the daemon serves them, without a browser: whole, typed, restricted, and leading nowhere else."""

import http.client
import os
import re

import ampd_process
from ampd_process import DaemonTest


class WebFilesTest(DaemonTest):
    def test_files_are_whole_typed_and_restricted(self):
        ampd = self.daemon()
        folder = os.path.join(ampd_process.SOURCE, "web")
        types = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
        root = re.search(r'src="(v/[0-9a-f]{16}/)js/main.js"', self.get(ampd, "")[2].decode()).group(1)
        seen = 0
        for place, _, names in os.walk(folder):
            for name in set(names) - {"index.html"}:
                path = root + os.path.relpath(os.path.join(place, name), folder)
                status, headers, body = self.get(ampd, path)
                with open(os.path.join(place, name), "rb") as file:
                    self.assertEqual((status, body), (200, file.read()), path)
                self.assertTrue(headers["Content-Type"].startswith(types[os.path.splitext(name)[1]]), path)
                # Its path names what it holds.
                self.assertEqual(headers["Cache-Control"], "public, max-age=31536000, immutable")
                self.assertNotIn("unsafe", headers["Content-Security-Policy"])
                status, _, body = self.get(ampd, path, {"If-None-Match": headers["ETag"]})
                self.assertEqual((status, body), (304, b""))
                seen += 1
        self.assertGreater(seen, 30)
        self.assertEqual(self.get(ampd, root + "js/nothing.js")[0], 404)
        self.assertEqual(self.get(ampd, "v/0123456789abcdef/js/main.js")[0], 404)
        self.assertEqual(self.get(ampd, "../etc/passwd")[0] // 100, 4)

    def test_the_first_answer_names_all_that_is_needed(self):
        """So that no file is found out about by reading another: each module that main.js comes to need is asked for in advance."""
        ampd = self.daemon()
        status, headers, body = self.get(ampd, "")
        page = body.decode()
        self.assertEqual((status, headers["Cache-Control"]), (200, "no-cache"))
        self.assertIn("script-src 'self'", headers["Content-Security-Policy"])
        self.assertEqual(self.get(ampd, "", {"If-None-Match": headers["ETag"]})[0], 304)
        # What main.js needs to begin, and what is imported by any of them later.
        first, every = self.closure(r"^import .*?from '\./([^']+)';"), self.closure(r"(?:from|import\() ?'\./([^']+)'")
        asked = re.findall(r'<link rel="modulepreload"( fetchpriority="low")? href="v/[0-9a-f]{16}/([^"]+)">', page)
        self.assertEqual(sorted(path for later, path in asked if not later), sorted(first))
        self.assertEqual(sorted(path for later, path in asked if later), sorted(every - first))
        self.assertIn("js/job_page.js", every - first)
        self.assertGreater(len(asked), 30)
        # No file under a name that stays when it changes.
        self.assertEqual(re.findall(r'(?:href|src)="(?!v/|#)([^"]+)"', page), [])

    def test_what_counts_as_logs_is_the_same_in_all_that_show_them(self):
        def kinds(path, begin, end, pattern):
            with open(os.path.join(ampd_process.SOURCE, path)) as file:
                return sorted(re.findall(pattern, file.read().split(begin)[1].split(end)[0]))

        page = kinds("web/js/logs_tab.js", "const KINDS =", ";", r"'(\w+)'")
        self.assertIn("log", page)
        of_cpp = ["k" + "".join(part.capitalize() for part in kind.split("_")) for kind in page]
        for path in ["server/web/api_events.cc", "client/commands/logs.cc"]:
            self.assertEqual(kinds(path, "kLogged[] = {", "}", r"v1::JobEvent::(k\w+)"), of_cpp, path)

    def closure(self, pattern):
        """Modules that main.js comes to import, by imports that look like that."""
        found, more = set(), {"main.js"}
        while more:
            with open(os.path.join(ampd_process.SOURCE, "web/js", more.pop())) as file:
                new = set(re.findall(pattern, file.read(), re.M | re.S)) - found
            found |= new
            more |= new
        return {f"js/{name}" for name in found}

    def get(self, ampd, path, headers=None):
        connection = http.client.HTTPConnection(ampd.http_address, timeout=ampd_process.DEADLINE)
        self.addCleanup(connection.close)
        connection.request("GET", f"/{path}", headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()

    def test_nothing_in_the_files_leads_elsewhere(self):
        """No address of another host, no HTML from strings, nothing inline that the policy would forbid."""
        folder = os.path.join(ampd_process.SOURCE, "web")
        wrong = []
        for place, _, names in os.walk(folder):
            for name in names:
                with open(os.path.join(place, name)) as file:
                    text = file.read().replace("http://www.w3.org/2000/svg", "")
                wrong += [f"{name}: {bad}" for bad in ("http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                                                      "eval(", "new Function", " style=\"", "<style", "onclick=\"") if bad in text]
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    ampd_process.main()
