"""What a server process is given, and which interpreters are refused before anything is launched."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from mtpgate.engine.environment import (
    ENGINE_ARGUMENTS,
    OVERLAY,
    SGLANG_VERSION,
    engine_environment,
    engine_missing,
)
from mtpgate.engine.fault import VARIABLE, Fault

MODULES = sorted(OVERLAY.rglob("*.py"))


def test_the_overlay_comes_before_what_the_caller_has_on_the_path() -> None:
    assert engine_environment({})["PYTHONPATH"] == str(OVERLAY)
    assert engine_environment({"PYTHONPATH": "/a:/b"})["PYTHONPATH"] == os.pathsep.join([str(OVERLAY), "/a:/b"])


def test_the_callers_variables_are_kept_and_the_engines_win() -> None:
    environment = engine_environment({"HOME": "/home/x", "OMP_NUM_THREADS": "64"})
    assert environment["HOME"] == "/home/x"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["SGLANG_USE_CPU_ENGINE"] == "1"


def test_a_server_is_broken_only_where_the_caller_says_so() -> None:
    inherited = {VARIABLE: "weights:hang"}
    assert VARIABLE not in engine_environment(inherited)
    fault = Fault("forward", "slow", 0.3)
    assert engine_environment(inherited, fault=fault)[VARIABLE] == "forward:slow=0.3"


def test_sglang_finds_the_plugin_and_the_backend_that_the_arguments_name() -> None:
    [entry] = [entry for found in distributions(path=[str(OVERLAY)]) for entry in found.entry_points]
    assert entry.group == "sglang.srt.plugins"
    assert engine_environment({})["SGLANG_PLUGINS"] == entry.name
    module, _, function = entry.value.partition(":")
    plugin = ast.parse((OVERLAY / (module.replace(".", "/") + ".py")).read_text())
    assert function in {node.name for node in plugin.body if isinstance(node, ast.FunctionDef)}
    names = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in plugin.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert names["ATTENTION_BACKEND"] == ENGINE_ARGUMENTS["attention_backend"]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(OVERLAY)))
def test_the_overlay_asks_for_nothing_that_another_environment_may_lack(module: Path) -> None:
    # psutil is one of SGLang's own requirements.
    allowed = {*sys.stdlib_module_names, "torch", "sglang", "mtpgate_engine", "psutil"}
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            roots = {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            roots = {str(node.module).partition(".")[0]}
        else:
            continue
        assert roots <= allowed, f"{module.name}, line {node.lineno}"


def test_the_kernel_package_offers_the_cpu_operators_and_hides_amx() -> None:
    """In a process of its own, which sees the overlay as a server does."""
    script = """
import sgl_kernel, torch
assert all(callable(getattr(sgl_kernel, name)) for name in sgl_kernel.__all__)
assert torch.ops.sgl_kernel.decode_attention_cpu.default and torch.ops.sgl_kernel.extend_attention_cpu.default
assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")
"""
    subprocess.run([sys.executable, "-c", script], env=engine_environment(os.environ), check=True, timeout=120)


def interpreter(folder: Path, script: str) -> Path:
    """A program that stands in for a Python interpreter: it ignores its arguments and runs ``script``."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_with_the_right_sglang_is_taken(tmp_path: Path) -> None:
    assert engine_missing(interpreter(tmp_path, f"echo answer {SGLANG_VERSION} -")) is None


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo answer - torch", "has no SGLang"),
        ("echo answer 0.5.17 -", "has SGLang 0.5.17, the CPU engine needs 0.5.23"),
        (f"echo answer {SGLANG_VERSION} torchvision,xgrammar", "without torchvision, xgrammar"),
        ("echo 'cannot execute binary' >&2; exit 126", "is no working Python .cannot execute binary."),
        ("true", "is no working Python .exit code 0."),
        ("exec tail -f /dev/null", "gave no answer in 0.2 s"),
    ],
)
def test_an_interpreter_that_cannot_run_the_engine_is_refused_in_one_line(
    tmp_path: Path, script: str, reason: str
) -> None:
    missing = engine_missing(interpreter(tmp_path, script), timeout=0.2 if "tail" in script else 30.0)
    assert missing is not None
    assert re.search(reason, missing)
    assert "--sglang-python" in missing
    assert "\n" not in missing


def test_an_interpreter_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert "cannot be started (No such file or directory)" in str(engine_missing(tmp_path / "python"))


def test_the_probe_tells_the_packages_of_a_real_interpreter() -> None:
    """An isolated interpreter without site-packages has no SGLang; the probe itself must run there."""
    missing = engine_missing(Path(sys.base_prefix) / "bin" / Path(sys.executable).resolve().name)
    assert missing is None or "SGLang" in missing
