"""A database with a damaged page: the start is refused with its name, and the last good copy is taken up again."""

import os
import shutil
import subprocess

import ampd_process
from ampd_process import DaemonTest, glyphs_job

PAGE = 4096


class DamagedDatabaseTest(DaemonTest):
    def test_a_damaged_page_is_named_and_nothing_is_changed(self):
        ampd = self.daemon()
        job = ampd.run(glyphs_job("before", steps=20, report={"every_steps": 1}))
        self.assert_state(job, "SUCCEEDED")
        self.assertEqual(ampd.terminate(), 0)
        path = os.path.join(ampd.state_dir, "ampd.db")
        good = path + ".good"
        shutil.copyfile(path, good)
        pages = os.path.getsize(path) // PAGE
        for page in (2, pages):
            with self.subTest(page=page):
                with open(path, "r+b") as file:
                    file.seek((page - 1) * PAGE + 100)
                    byte = file.read(1)[0]
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte ^ 4]))
                with open(path, "rb") as file:
                    damaged = file.read()
                refused = subprocess.run(ampd.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
                self.assertEqual(refused.returncode, 1, refused.stderr)
                self.assertNotIn("ready", refused.stdout)
                self.assertIn("cannot start", refused.stderr)
                self.assertIn(path, refused.stderr)
                self.assertRegex(refused.stderr, rf"page {page} .*has checksum [0-9a-f]{{16}}, its bytes have")
                self.assertIn("docs/operations.md", refused.stderr)
                with open(path, "rb") as file:
                    self.assertEqual(file.read(), damaged)
                shutil.copyfile(good, path)
        ampd.start()
        self.assert_state(ampd.get(job.id), "SUCCEEDED")
        self.assert_sequence(ampd.events(job.id))
        self.assertIn("\nampd_database_damaged_pages 0\n", ampd.http("/metrics")[1])
        self.assert_healthy(ampd)


if __name__ == "__main__":
    ampd_process.main()
