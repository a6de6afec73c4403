"""Adds to the build what the protos give: see generate.py. Everything else is in pyproject.toml."""

import os
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import generate  # noqa: E402


class BuildWithStubs(build_py):
    def run(self):
        super().run()
        proto = os.environ.get("AMPD_PROTO", os.path.join(HERE, "../../proto"))
        editable = getattr(self, "editable_mode", False)
        generate.generate(proto, os.path.join(HERE if editable else self.build_lib, "ampd"))


setup(cmdclass={"build_py": BuildWithStubs})
