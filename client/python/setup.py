"""Adds to the build what the protos give, and what that needs: see generate.py. Everything else is in pyproject.toml."""

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


def requirements():
    """Of the package. When pip asks what the build needs, a compiler of the protos may be what is still missing."""
    compiled = generate.requirements() if generate.find_compiler() else []
    return [*compiled, "numpy>=1.24,<3", "PyYAML>=6,<7"]


setup(cmdclass={"build_py": BuildWithStubs}, install_requires=requirements())
