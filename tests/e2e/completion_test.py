"""Completion in real shells, and the manual page as readers of manuals see it."""

import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import time

import ampd_process
from ampd_process import DEADLINE, OneDaemonTest, glyphs_job


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, command, environment):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, environment)
        self.text = ""

    def send(self, text):
        os.write(self.file, text.encode())

    def await_text(self, pattern):
        """Reads until what came since the last call matches."""
        deadline = time.monotonic() + DEADLINE
        while not (match := re.search(pattern, self.text)):
            if time.monotonic() > deadline or not select.select([self.file], [], [], deadline - time.monotonic())[0]:
                raise AssertionError(f"no {pattern!r} in {self.text!r}")
            self.text += os.read(self.file, 65536).decode(errors="replace")
        self.text = self.text[match.end():]
        return match

    def close(self):
        os.close(self.file)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class CompletionTest(OneDaemonTest):
    def setUp(self):
        super().setUp()
        self.environment = {**self.ampd.ctl_environment(), "TERM": "dumb", "LC_ALL": "C.UTF-8", "HOME": self.folder,
                            "PATH": os.path.dirname(ampd_process.program("ampctl")) + ":" + os.environ["PATH"],
                            "AMPCTL_CONFIG": os.path.join(self.folder, "config.yaml")}
        self.job_file("{}", "work.yaml")

    def waiting_job(self):
        return self.ampd.submit(glyphs_job("later", steps=2, not_before="2099-01-01T00:00:00Z")).id

    def shell(self, shell, script, **environment):
        if shutil.which(shell) is None:
            self.skipTest(f"{shell} is not installed")
        options = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
        return subprocess.run([shell, *options, "-c", script], env={**self.environment, **environment}, text=True, cwd=self.folder,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE, check=True).stdout

    def bash(self, *words):
        """What bash would be told for the words, of which the last is being typed."""
        line = " ".join(f"'{word}'" for word in ("ampctl",) + words)
        return self.shell("bash", f"source <(ampctl completion bash); COMP_WORDS=({line}); COMP_CWORD={len(words)}; "
                          '_ampctl; printf "%s\\n" "${COMPREPLY[@]}"').split()

    def test_bash_completes_verbs_options_and_values(self):
        self.assertEqual(self.bash("chec"), ["checkpoint", "checkpoints"])
        self.assertEqual(self.bash("tokens", "cr"), ["create"])
        self.assertEqual(self.bash("submit", "--resu"), ["--resume-from"])
        self.assertEqual(self.bash("-o", "y"), ["yaml"])
        # As bash takes such words apart.
        self.assertEqual(self.bash("--output", "=", "y"), ["yaml"])
        self.assertEqual(self.bash("--server", "127.0.0.1", ":", "1", "--output", "="), ["table", "json", "jsonl", "yaml"])
        self.assertEqual(self.bash("submit", "work.yaml", "--set", "precision.mode", "=", "B"), ["BF16"])
        self.assertEqual(self.bash("submit", "work.yaml", "--set", "train.batch"), ["train.batch_size="])

    def test_bash_completes_what_the_server_has(self):
        job_id = self.waiting_job()
        self.assertIn(job_id, self.bash("get", ""))
        self.assertEqual(self.bash("get", job_id[:12]), [job_id])
        self.assertIn(job_id, self.bash("cancel", job_id[:12]))
        # Not what the verb can do nothing with.
        self.assertEqual(self.bash("resume", job_id[:12]), [])
        self.assertEqual(self.bash("drain", "cpu"), ["cpu-0"])
        # Of the server that the line names.
        self.assertEqual(self.bash("--server", "127.0.0.1:1", "get", ""), [])

    def test_a_server_that_does_not_answer_holds_nobody_up(self):
        # Connections are taken there, and nothing is answered.
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            self.assertEqual(self.bash("--server", f"127.0.0.1:{silent.getsockname()[1]}", "get", ""), [])

    def test_a_person_presses_tab_in_bash(self):
        job_id = self.waiting_job()
        terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], {**self.environment, "PS1": "ready> "})
        self.addCleanup(terminal.close)
        terminal.await_text("ready> ")
        terminal.send(f"cd '{self.folder}'; bind 'set enable-bracketed-paste off'; source <(ampctl completion bash)\n")
        terminal.await_text("completion bash.\r\n.*ready> ")
        terminal.send("ampctl pau\t")
        terminal.await_text("ampctl pause ")
        terminal.send(job_id[:14] + "\t")
        terminal.await_text(job_id + " ")
        terminal.send("\x15ampctl submit wor\t")
        terminal.await_text("work.yaml ")
        terminal.send("--set precision.mo\t")
        terminal.await_text("precision.mode=")
        terminal.send("BF\t")
        terminal.await_text("16 ")

    def test_zsh_and_fish(self):
        job_id = self.waiting_job()
        # Stand-ins for zsh's own: what would be shown.
        zsh = """
compdef() { : }
_describe() { [[ $1 == -V ]] && shift; local -a shown=("${(@P)2}"); print -l -- "${shown[@]}" }
_files() { print files }
source <(ampctl completion zsh)
complete_words() { local -a words=("$@"); local CURRENT=$#; _ampctl }
complete_words ampctl pau
complete_words ampctl get %s
complete_words ampctl submit ''
""" % job_id[:12]
        shown = self.shell("zsh", zsh).splitlines()
        self.assertEqual(shown[0].split(":")[0], "pause")
        self.assertEqual(shown[1], f"{job_id}:later, QUEUED")
        self.assertEqual(shown[2], "files")
        fish = "ampctl completion fish | source; complete -C 'ampctl pau'; complete -C 'ampctl get %s'; complete -C 'ampctl submit wor'"
        shown = self.shell("fish", fish % job_id[:12]).splitlines()
        self.assertEqual([line.split("\t")[0] for line in shown], ["pause", job_id, "work.yaml"])

    def test_the_manual_is_one(self):
        page = self.ctl(0, "man").stdout
        path = self.job_file(page, "ampctl.1")
        looked = False
        if shutil.which("mandoc"):
            looked = True
            lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", path], text=True, capture_output=True)
            # A page that is the same in every build has no date.
            self.assertEqual([line for line in lint.stdout.splitlines() if "missing date" not in line], [])
        if shutil.which("groff"):
            looked = True
            groff = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", path], text=True, capture_output=True, check=True)
            self.assertEqual(groff.stderr, "")
            text = subprocess.run(["groff", "-man", "-Tascii", "-P-c", "-P-b", "-P-u", path], text=True, capture_output=True, check=True).stdout
            self.assertIn("       --token-file FILE\n", text)
            self.assertIn("           ampctl logs 01hq3v7m -f --tail 20\n", text)
        if not looked:
            self.skipTest("neither mandoc nor groff is installed")


if __name__ == "__main__":
    ampd_process.main()
