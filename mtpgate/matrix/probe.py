"""Ask the SGLang under test for its version and its flags, without launching a server.

That SGLang may live in another environment or in a container, so the question is a small script for *its* Python:
the one in the launch command. Imports cost 6-8 s on a CPU, so an answer is kept on disk under everything that could
change it: the command, the interpreter, the installed SGLang and the Python path. A command that is no plain Python
(``sglang serve``, a wrapper script) is asked for ``--help`` instead, and is asked each time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtpgate.errors import UsageError

MODULE = "sglang.launch_server"
PROBE_TIMEOUT_S = 180.0
"""Imports on a cold disk; they take 6-8 s when warm."""

_MARK = "mtpgate-probe:"
_FIND = f"""
import importlib.metadata, importlib.util, json, os
spec = importlib.util.find_spec("sglang")
origin = (spec.origin or list(spec.submodule_search_locations)[0]) if spec else None
try:
    version = importlib.metadata.version("sglang")
except importlib.metadata.PackageNotFoundError:
    version = "unknown"
folder = os.path.dirname(origin) if origin else None
source = os.path.join(folder, "srt", "server_args.py") if folder else ""
mtime = os.path.getmtime(source) if os.path.exists(source) else None
print("{_MARK}" + json.dumps({{"folder": folder, "version": version, "mtime": mtime}}))
"""
_ASK = f"""
import argparse, json
try:
    from sglang.srt.plugins import load_plugins
except ImportError:
    pass
else:
    load_plugins()
from sglang.srt.server_args import ServerArgs
import sglang
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
flags = sorted(parser._option_string_actions)
print("{_MARK}" + json.dumps({{"version": getattr(sglang, "__version__", "unknown"), "flags": flags}}))
"""


@dataclass(frozen=True)
class SGLangFacts:
    """The SGLang that will be launched."""

    version: str
    """As the package says, e.g. ``0.5.23``; ``unknown`` where only ``--help`` could be asked."""
    known_flags: frozenset[str]
    """Every long and short option that its parser takes, aliases included."""
    entry: tuple[str, ...]
    """The command that flags are appended to."""


def python_command(python: str) -> tuple[str, ...]:
    """The launch command for the SGLang of an interpreter."""
    return (python, "-m", MODULE)


def probe_flags(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    cache: Path | None = None,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> SGLangFacts:
    """Version and flags of the SGLang that ``command`` launches (``python -m sglang.launch_server``, a container).

    ``environment`` is complete, as for the launch; ``cache`` is a folder for answers (None asks each time). The
    command may be a template with ``{host}``, ``{port}``, ``{model}`` and ``{args}``; ``entry`` keeps them.
    Raises UsageError if there is no such command, no SGLang behind it, or it cannot be imported.
    """
    entry = tuple(command)
    if not entry:
        raise UsageError("the server command is empty; expected e.g. python -m sglang.launch_server")
    prefix = _python_of(entry)
    if prefix is None:
        flags = _from_help(entry, environment, timeout_s)
        return SGLangFacts("unknown", flags, entry)
    found = _answer([*prefix, "-c", _FIND], environment, timeout_s)
    if found["folder"] is None:
        raise _no_sglang(prefix, "No module named 'sglang'")
    kept = None if cache is None else cache / f"sglang-flags-{_key(entry, environment, found)}.json"
    answer = _read(kept)
    if answer is None:
        answer = _answer([*prefix, "-c", _ASK], environment, timeout_s)
        _write(kept, answer)
    version = found["version"] if found["version"] != "unknown" else answer["version"]
    return SGLangFacts(str(version), frozenset(answer["flags"]), entry)


def _python_of(command: tuple[str, ...]) -> tuple[str, ...] | None:
    """The part of the command that runs Python, if what follows is ``-m sglang.launch_server``."""
    for index in range(1, len(command) - 1):
        if command[index : index + 2] == ("-m", MODULE):
            return _filled(command[:index])
    return None


def _filled(command: tuple[str, ...], args: str = "") -> tuple[str, ...]:
    """A template as a command that asks instead of serving. Nothing listens on the port, and no model is read."""
    stand_ins = {"{host}": "127.0.0.1", "{port}": "65535", "{model}": "none", "{args}": args}
    for placeholder, value in stand_ins.items():
        command = tuple(part.replace(placeholder, value) for part in command)
    return command


def _answer(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    """The JSON that a probe script prints last; SGLang and its plugins may print before it."""
    result = _run(command, environment, timeout_s)
    line = next((line for line in reversed(result.stdout.splitlines()) if line.startswith(_MARK)), None)
    if result.returncode != 0 or line is None:
        raise _no_sglang(command[:-2], _last_line(result))
    answer: dict[str, Any] = json.loads(line.removeprefix(_MARK))
    return answer


def _run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError(f"{command[0]}: no such command; give --sglang-python or --server-command one") from None
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        text = f"{shlex.join(command[:4])} ...: no answer in {timeout_s:.0f} s when asked for SGLang's flags"
        raise UsageError(text) from None


def _no_sglang(python: Sequence[str], why: str) -> UsageError:
    where = shlex.join(python)
    if "No module named 'sglang'" in why:
        return UsageError(
            f"no SGLang in {where}: {why}; install with `{where} -m pip install sglang`, "
            "or name another with --sglang-python"
        )
    return UsageError(
        f"the SGLang in {where} cannot be imported: {why}; repair it, or name another with --sglang-python"
    )


def _last_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (result.stderr + result.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or [f"exit code {result.returncode} without a word"])[-1]


def _from_help(entry: tuple[str, ...], environment: Mapping[str, str], timeout_s: float) -> frozenset[str]:
    question = _filled(entry, "--help") if "{args}" in entry else (*_filled(entry), "--help")
    result = _run(question, environment, timeout_s)
    flags = flags_in_help(result.stdout)
    if result.returncode != 0 or "--model-path" not in flags:
        raise UsageError(f"{shlex.join(question)} shows no SGLang server: {_last_line(result)}")
    return flags


def flags_in_help(text: str) -> frozenset[str]:
    """The options of an argparse help text: the words that begin its option paragraphs (``  --a A, -b B``).

    Only those: the texts below them name other flags, some of which are gone.
    """
    heads = re.findall(r"^ {2}(-{1,2}[A-Za-z].*)$", text, re.MULTILINE)
    # Choices are shown in braces and may hold anything.
    heads = [re.sub(r"\{[^}]*\}", "", head) for head in heads]
    return frozenset(flag for head in heads for flag in re.findall(r"(?:^|, )(-{1,2}[A-Za-z][\w-]*)", head))


def _key(entry: tuple[str, ...], environment: Mapping[str, str], found: Mapping[str, object]) -> str:
    program = shutil.which(entry[0], path=environment.get("PATH"))
    interpreter = Path(program or entry[0]).resolve()
    parts = [
        list(entry),
        str(interpreter),
        interpreter.stat().st_mtime if interpreter.exists() else None,
        dict(found),
        environment.get("PYTHONPATH", ""),
        sorted(item for item in environment.items() if item[0].startswith("SGLANG_")),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _read(kept: Path | None) -> dict[str, Any] | None:
    """A kept answer; anything unreadable is asked for again."""
    try:
        answer = json.loads(kept.read_text()) if kept else None
    except (OSError, ValueError):
        return None
    usable = isinstance(answer, dict) and isinstance(answer.get("flags"), list) and "version" in answer
    return answer if usable else None


def _write(kept: Path | None, answer: Mapping[str, object]) -> None:
    """Whole or not at all, for another process may read at the same time; a full disk only costs the cache."""
    if kept is None:
        return
    part = kept.with_suffix(f".{os.getpid()}.part")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(answer))
        part.replace(kept)
    except OSError:
        part.unlink(missing_ok=True)
