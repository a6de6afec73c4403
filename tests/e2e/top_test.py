"""`ampctl top` in a real terminal, tmux's: what is on the screen, at several sizes, and that the terminal is left as it was."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import unittest

import ampd_process
from ampd_process import OneDaemonTest, eventually, glyphs_job

SETTINGS = "stty -a"


@unittest.skipUnless(shutil.which("tmux"), "tmux is not installed")
class TopTest(OneDaemonTest):
    def setUp(self):
        super().setUp()
        self.socket = os.path.join(self.folder, "tmux")
        self.addCleanup(self.tmux, "kill-server", check=False)
        self.environment = {**self.ampd.ctl_environment(), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", "TZ": "IST-5:30"}

    def tmux(self, *arguments, check=True):
        return subprocess.run(["tmux", "-u", "-f", "/dev/null", "-S", self.socket, *arguments], check=check, text=True,
                              capture_output=True, env=getattr(self, "environment", None)).stdout

    def shell(self, columns=80, rows=24):
        """A shell in a terminal of its own."""
        start = self.job_file("PS1='ready> '\n", "bashrc")
        self.tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), "-s", "main", f"bash --rcfile {shlex.quote(start)}")
        self.tmux("set-option", "-g", "status", "off")
        self.tmux("resize-window", "-t", "main", "-x", str(columns), "-y", str(rows))
        self.await_screen("^ready>")
        self.before = self.settings("first")

    def settings(self, mark):
        """stty's of the terminal, asked from within."""
        path = os.path.join(self.folder, mark)
        self.type(f"{SETTINGS} > {shlex.quote(path)}.part && mv {shlex.quote(path)}.part {shlex.quote(path)}")
        eventually(lambda: os.path.exists(path), "stty's answer")
        with open(path) as file:
            # The size may have changed.
            return re.sub(r"rows \d+; columns \d+;", "", file.read())

    def type(self, line):
        self.tmux("send-keys", "-t", "main", "-l", line)
        self.tmux("send-keys", "-t", "main", "Enter")

    def screen(self):
        return self.tmux("capture-pane", "-p", "-t", "main")

    def await_screen(self, pattern, flags=re.M):
        def found():
            self.last = self.screen()
            return re.search(pattern, self.last, flags)

        try:
            return eventually(found, pattern)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.last}") from None

    def start_top(self, *arguments):
        self.type(" ".join([shlex.quote(ampd_process.program("ampctl")), "top", *arguments]))
        self.await_screen(r"^ampd \S+ at .* devices  \d\d:\d\d:\d\d IST")

    def top_pid(self):
        shell = self.tmux("display-message", "-p", "-t", "main", "#{pane_pid}").strip()
        return int(subprocess.run(["ps", "-o", "pid=", "--ppid", shell], check=True, text=True,
                                  capture_output=True).stdout.split()[0])

    def assert_terminal_is_restored(self, mark):
        """The shell's own screen is back, with a cursor, and lines are edited as before."""
        eventually(lambda: self.tmux("display-message", "-p", "-t", "main", "#{alternate_on} #{cursor_flag} #{wrap_flag}").split() ==
                   ["0", "1", "1"], "the terminal's own screen")
        self.assertNotIn("q quit", self.screen())
        self.assertEqual(self.settings(mark), self.before)

    def running_job(self):
        job = self.ampd.submit(glyphs_job("resnet", steps=1000000, mode="FP16"))
        self.ampd.wait_for_step(job.id, 30)
        return job.id

    def test_devices_jobs_and_curves_at_80_by_24(self):
        job_id = self.running_job()
        queued = self.ampd.submit(glyphs_job("waits", steps=5, not_before="2099-01-01T00:00:00Z")).id
        self.shell()
        self.start_top("--interval", "0.2")
        self.await_screen(r"^cpu-0 .* resnet")
        self.await_screen(rf"^{job_id[:10]} resnet +RUNNING +\d+/1000000 ")
        self.await_screen(rf"^{queued[:10]} waits +QUEUED ")
        self.await_screen(r"^loss +\S+  [▁-█x]{5,} ")
        self.await_screen(r"^loss scale +\S+  [▁-█]{5,} ")
        self.await_screen(r"^samples/s +\S+  [▁-█]{5,} ")
        lines = self.screen().rstrip("\n").split("\n")
        self.assertLessEqual(len(lines), 24)
        self.assertTrue(lines[-1].startswith("q quit"), lines[-1])
        self.assertTrue(all(len(line) <= 80 for line in lines))
        # It is live.
        step = int(self.await_screen(rf"^{job_id[:10]} resnet +RUNNING +(\d+)/")[1])
        eventually(lambda: int(self.await_screen(rf"^{job_id[:10]} resnet +RUNNING +(\d+)/")[1]) > step, "another step")
        # The other job, and back.
        self.tmux("send-keys", "-t", "main", "Down")
        self.await_screen(rf"^waits  {queued}  .*QUEUED \(NOT_BEFORE")
        self.tmux("send-keys", "-t", "main", "k")
        self.await_screen(rf"^resnet  {job_id}  ")
        self.ctl(0, "cancel", queued)
        self.await_screen(rf"^{queued[:10]} waits +CANCELLED ")
        self.tmux("send-keys", "-t", "main", "e")
        eventually(lambda: "CANCELLED" not in self.screen(), "the ended job to go")
        self.tmux("send-keys", "-t", "main", "q")
        self.assert_terminal_is_restored("after")

    def test_it_takes_every_size(self):
        self.running_job()
        self.shell(80, 24)
        self.start_top("--interval", "0.2")
        for columns, rows in ((132, 43), (60, 12), (20, 5), (200, 60), (80, 24)):
            with self.subTest(columns=columns, rows=rows):
                self.tmux("resize-window", "-t", "main", "-x", str(columns), "-y", str(rows))

                def drawn():
                    lines = self.screen().rstrip("\n").split("\n")
                    return len(lines) == rows and lines[-1].startswith("q quit"[:columns]) and lines[0].startswith("ampd")

                eventually(drawn, f"a screen of {columns} by {rows}")
        self.tmux("send-keys", "-t", "main", "C-c")
        self.assert_terminal_is_restored("after")

    def test_the_terminal_is_restored_however_it_ends(self):
        self.shell()
        for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGSEGV", "SIGABRT", "SIGBUS"):
            with self.subTest(signal=name):
                self.type("clear")
                self.start_top()
                self.await_screen("q quit")
                os.kill(self.top_pid(), getattr(signal, name))
                self.assert_terminal_is_restored(name)

    def test_it_can_be_suspended_and_outlives_the_daemon(self):
        self.shell()
        self.start_top("--interval", "0.2")
        self.tmux("send-keys", "-t", "main", "C-z")
        self.assert_terminal_is_restored("suspended")
        self.type("fg")
        self.await_screen("q quit")
        self.ampd.kill()
        self.await_screen(r"^ampd at \S+ does not answer since \d\d:\d\d:\d\d IST: ")
        self.ampd.start()
        self.await_screen(r"^ampd \S+ at .* devices  ")
        self.tmux("send-keys", "-t", "main", "q")
        self.assert_terminal_is_restored("after")

    def test_keys_that_come_together_all_count(self):
        jobs = [self.ampd.submit(glyphs_job(name, steps=5, not_before="2099-01-01T00:00:00Z")).id for name in ("third", "second", "first")]
        self.shell()
        self.start_top()
        self.await_screen(rf"^third  {jobs[0]}  |^first  {jobs[2]}  ")
        down = self.await_screen(r"^(first|third)  01")[1]
        self.tmux("send-keys", "-t", "main", "jj")
        self.await_screen(r"^%s  01" % ("third" if down == "first" else "first"))
        self.tmux("send-keys", "-t", "main", "kq")
        self.assert_terminal_is_restored("after")

    def test_it_ends_where_the_server_refuses_to_be_asked(self):
        ampd = self.daemon(config={"auth": {"tokens": True, "init_admin_token": os.path.join(self.folder, "admin.token")}})
        self.environment["AMPD_SERVER"] = ampd.grpc_address
        self.shell()
        self.type(f"{shlex.quote(ampd_process.program('ampctl'))} top; echo code $?")
        self.await_screen(r"^ampctl: not authorised: [^$]*^code 5$")
        self.assert_terminal_is_restored("after")

    def test_without_a_terminal(self):
        self.assertIn("needs a terminal", self.ctl(1, "top").stderr)
        text = self.ctl(0, "top", "--once").stdout
        self.assertEqual(len(text.splitlines()), 24)
        self.assertIn("cpu-0", text)
        self.assertNotIn("\x1b", text)


if __name__ == "__main__":
    ampd_process.main()
