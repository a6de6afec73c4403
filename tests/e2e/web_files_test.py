"""The files of the web page as the daemon serves them, without a browser: whole, typed, restricted, and leading nowhere else."""

import http.client
import os

import ampd_process
from ampd_process import DaemonTest


class WebFilesTest(DaemonTest):
    def test_files_are_whole_typed_and_restricted(self):
        ampd = self.daemon()
        folder = os.path.join(ampd_process.SOURCE, "web")
        types = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
        seen = 0
        for place, _, names in os.walk(folder):
            for name in names:
                path = os.path.relpath(os.path.join(place, name), folder)
                status, headers, body = self.get(ampd, "" if path == "index.html" else path)
                with open(os.path.join(place, name), "rb") as file:
                    self.assertEqual((status, body), (200, file.read()), path)
                self.assertTrue(headers["Content-Type"].startswith(types[os.path.splitext(name)[1]]), path)
                self.assertEqual(headers["Cache-Control"], "no-cache")
                self.assertNotIn("unsafe", headers["Content-Security-Policy"])
                status, _, body = self.get(ampd, "" if path == "index.html" else path, {"If-None-Match": headers["ETag"]})
                self.assertEqual((status, body), (304, b""))
                seen += 1
        self.assertGreater(seen, 30)
        self.assertEqual(self.get(ampd, "js/nothing.js")[0], 404)
        self.assertEqual(self.get(ampd, "../etc/passwd")[0] // 100, 4)

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
