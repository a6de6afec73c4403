"""setuptools, which here asks for grpcio-tools where the system has no protoc with grpc_python_plugin: pip builds in an environment of its
own, in which nothing is but what a build asks for."""

import os
import sys

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import generate  # noqa: E402


def get_requires_for_build_wheel(config_settings=None):
    return build_meta.get_requires_for_build_wheel(config_settings) + generate.tools()


def get_requires_for_build_editable(config_settings=None):
    return build_meta.get_requires_for_build_editable(config_settings) + generate.tools()
