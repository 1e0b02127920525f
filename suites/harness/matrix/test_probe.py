"""The SGLang under test says which flags it has. Here it is a small package with SGLang's names."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from mtpgate.errors import UsageError
from mtpgate.matrix.probe import flags_in_help, probe_flags, python_command

SERVER_ARGS = """\
print("a warning of some import")
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model")
        parser.add_argument("--new-flag", help="replaces --old-flag")
"""
PLUGINS = """\
def load_plugins():
    from sglang.srt import server_args
    plain = server_args.ServerArgs.add_cli_args
    def with_plugin(parser):
        plain(parser)
        parser.add_argument("--plugin-flag")
    server_args.ServerArgs.add_cli_args = staticmethod(with_plugin)
"""
LAUNCH = """\
import argparse
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
parser.add_argument("--port", type=int)
parser.parse_args()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A small ``sglang`` on the Python path, beside the interpreter of these tests."""
    package = tmp_path / "site" / "sglang"
    (package / "srt" / "plugins").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '9.8.7'\n")
    (package / "srt" / "__init__.py").touch()
    (package / "srt" / "server_args.py").write_text(SERVER_ARGS)
    (package / "srt" / "plugins" / "__init__.py").write_text(PLUGINS)
    (package / "launch_server.py").write_text(LAUNCH)
    info = tmp_path / "site" / "sglang-9.8.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 9.8.7\n")
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(package.parent)}


def test_version_and_flags_are_those_that_the_launch_would_have(environment: dict[str, str]) -> None:
    facts = probe_flags(python_command(sys.executable), environment)
    assert facts.version == "9.8.7"
    assert facts.known_flags >= {"--model-path", "--model", "--new-flag", "--plugin-flag"}
    assert "--old-flag" not in facts.known_flags
    assert facts.entry == (sys.executable, "-m", "sglang.launch_server")


def test_an_answer_is_kept(environment: dict[str, str], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = probe_flags(python_command(sys.executable), environment, cache=cache)
    plugins = tmp_path / "site" / "sglang" / "srt" / "plugins" / "__init__.py"
    plugins.write_text("raise RuntimeError('asked again')")
    assert probe_flags(python_command(sys.executable), environment, cache=cache) == first


@pytest.mark.parametrize("change", ["source", "variable"])
def test_a_kept_answer_is_not_used_for_another_sglang(environment: dict[str, str], tmp_path: Path, change: str) -> None:
    cache = tmp_path / "cache"
    probe_flags(python_command(sys.executable), environment, cache=cache)
    source = tmp_path / "site" / "sglang" / "srt" / "server_args.py"
    was = source.stat().st_mtime
    source.write_text(SERVER_ARGS.replace("new-flag", "newer-flag"))
    os.utime(source, (was, was + 10 if change == "source" else was))
    after = environment | ({"SGLANG_PLUGINS": ""} if change == "variable" else {})
    assert "--newer-flag" in probe_flags(python_command(sys.executable), after, cache=cache).known_flags


def test_a_spoiled_cache_is_asked_again(environment: dict[str, str], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = probe_flags(python_command(sys.executable), environment, cache=cache)
    for kept in cache.iterdir():
        kept.write_text("{half")
    assert probe_flags(python_command(sys.executable), environment, cache=cache) == first


def test_no_sglang_is_one_clear_error(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    with pytest.raises(UsageError) as raised:
        probe_flags((sys.executable, "-S", "-m", "sglang.launch_server"), environment)
    text = str(raised.value)
    assert text.startswith(f"no SGLang in {sys.executable}")
    assert "install with" in text
    assert "--sglang-python" in text


def test_an_sglang_that_cannot_be_imported_says_why(environment: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "site" / "sglang" / "srt" / "server_args.py"
    source.write_text("raise ImportError('libcuda.so.1: cannot open shared object file')")
    with pytest.raises(UsageError, match="cannot be imported: ImportError: libcuda"):
        probe_flags(python_command(sys.executable), environment)


def test_an_interpreter_that_is_not_there_is_one_clear_error(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="no such command; give --sglang-python"):
        probe_flags(python_command("/nowhere/python"), environment)


def test_an_sglang_that_does_not_answer_is_given_up(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "site" / "sglang" / "srt" / "server_args.py").write_text("import time; time.sleep(60)")
    with pytest.raises(UsageError, match="no answer in 1 s"):
        probe_flags(python_command(sys.executable), environment, timeout_s=1)


def test_a_template_is_asked_through_its_python(environment: dict[str, str]) -> None:
    command = ("env", "MODEL={model}", sys.executable, "-m", "sglang.launch_server", "--port", "{port}", "{args}")
    facts = probe_flags(command, environment)
    assert facts.version == "9.8.7"
    assert facts.entry == command


@pytest.mark.parametrize("tail", [(), ("--port", "{port}", "{args}")])
def test_a_command_that_is_no_plain_python_is_asked_for_help(
    environment: dict[str, str], tmp_path: Path, tail: tuple[str, ...]
) -> None:
    wrapper = tmp_path / "serve"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m sglang.launch_server "$@"\n')
    wrapper.chmod(0o755)
    facts = probe_flags((str(wrapper), *tail), environment)
    assert facts.version == "unknown"
    assert "--new-flag" in facts.known_flags
    assert "--old-flag" not in facts.known_flags


def test_a_command_that_is_no_sglang_is_one_clear_error(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="shows no SGLang server"):
        probe_flags(("echo",), environment)


def test_flags_in_a_help_text_are_the_heads_of_its_options() -> None:
    text = (
        "usage: x [-h] [--model-path MODEL_PATH]\n\noptions:\n  -h, --help            show\n"
        "  --model-path MODEL_PATH, --model MODEL_PATH\n                        instead of --gone\n"
        "  --mode {a, --b}       --gone too\n"
    )
    assert flags_in_help(text) == {"-h", "--help", "--model-path", "--model", "--mode"}
