"""Neutral knobs to command-line flags, for the SGLang that will be launched.

A matrix names ServerArgs fields; flags come and go between versions (``--cuda-graph-max-bs`` was a flag up to 0.5.12,
an alias after, and is gone in 0.5.23, where argparse calls it ambiguous and exits with 2). So a knob is spelled with
the flags that the SGLang under test says it has (:mod:`mtpgate.matrix.probe`), compared in full: argparse's prefix
matching is not relied on.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from mtpgate.errors import UsageError
from mtpgate.matrix.cell import ArgumentValue

Arguments = Mapping[str, ArgumentValue]
Spelling = tuple[tuple[str, ArgumentValue], ...]
"""Flags with their values; all must be known for the spelling to fit."""


def _renamed(*names: str) -> Callable[[ArgumentValue, Arguments], list[Spelling]]:
    """The same value under several flags over the versions, the newest first."""
    return lambda value, _: [((name, value),) for name in names]


def _no_graphs(_: ArgumentValue, __: Arguments) -> list[Spelling]:
    """From the per-phase backends on (0.5.17) graphs are switched off for decode and prefill each."""
    new = (("--cuda-graph-backend-decode", "disabled"), ("--cuda-graph-backend-prefill", "disabled"))
    return [new, (("--disable-cuda-graph", True),)]


def _attention_dp(_: ArgumentValue, arguments: Arguments) -> list[Spelling]:
    """0.5.23 prefers ``--attn-dp-size N``; the old switch took N from ``--dp-size``."""
    return [(("--enable-dp-attention", True),), (("--attn-dp-size", arguments.get("dp_size", 1)),)]


_SPELLINGS: dict[str, Callable[[ArgumentValue, Arguments], list[Spelling]]] = {
    "cuda_graph_max_bs": _renamed("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
    "cuda_graph_max_bs_decode": _renamed("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
    "cuda_graph_bs": _renamed("--cuda-graph-bs-decode", "--cuda-graph-bs"),
    "disable_cuda_graph": _no_graphs,
    "enable_dp_attention": _attention_dp,
    "tp_size": _renamed("--tp-size", "--tensor-parallel-size", "--tp"),
    "dp_size": _renamed("--dp-size", "--data-parallel-size", "--dp"),
    "pp_size": _renamed("--pp-size", "--pipeline-parallel-size"),
    "ep_size": _renamed("--ep-size", "--expert-parallel-size", "--ep"),
    "speculative_algorithm": _renamed("--speculative-algorithm", "--speculative-algo"),
    "speculative_draft_model_path": _renamed("--speculative-draft-model-path", "--speculative-draft-model"),
    # Fields whose flag has another name: srt/arg_groups/fields/exec_.py (SGLang 0.5.23).
    "fp8_gemm_runner_backend": _renamed("--fp8-gemm-backend", "--fp8-gemm-runner-backend"),
    "fp4_gemm_runner_backend": _renamed("--fp4-gemm-backend", "--fp4-gemm-runner-backend"),
    "bf16_gemm_runner_backend": _renamed("--bf16-gemm-backend", "--bf16-gemm-runner-backend"),
}


def flags_for(arguments: Arguments, known_flags: frozenset[str], version: str = "unknown") -> list[str]:
    """The command-line words for ``arguments``, in their order; ``version`` is for the message only.

    True is a bare flag, False is left out. A ServerArgs name without an entry in the table is the flag of the same
    spelling. Raises UsageError that names each knob that this SGLang has no flag for, with the nearest ones it has.
    """
    words: list[str] = []
    missing: list[str] = []
    for name, value in arguments.items():
        if value is False:
            continue
        spellings = spellings_of(name, value, arguments)
        fitting = next((spelling for spelling in spellings if all(flag in known_flags for flag, _ in spelling)), None)
        if fitting is None:
            missing.append(_no_flag(name, spellings, known_flags, version))
            continue
        for flag, flag_value in fitting:
            words += _words(flag, flag_value)
    if missing:
        raise UsageError("\n".join(missing))
    return words


def spellings_of(name: str, value: ArgumentValue, arguments: Arguments) -> list[Spelling]:
    """The ways to spell a knob over SGLang's versions, the preferred one first."""
    if name in _SPELLINGS:
        return _SPELLINGS[name](value, arguments)
    return [((f"--{name.replace('_', '-')}", value),)]


def _words(flag: str, value: ArgumentValue) -> list[str]:
    if value is True:
        return [flag]
    text = str(value)
    # A value that begins with a dash would be taken for the next flag.
    return [f"{flag}={text}"] if text.startswith("-") or not text else [flag, text]


def _no_flag(name: str, spellings: list[Spelling], known_flags: frozenset[str], version: str) -> str:
    tried = ", ".join(" ".join(flag for flag, _ in spelling) for spelling in spellings)
    near = difflib.get_close_matches(spellings[0][0][0], sorted(known_flags), n=3, cutoff=0.6)
    hint = f"nearest flags it has: {', '.join(near)}" if near else "it has no flag of a similar name"
    return f"{name}: SGLang {version} has no flag for it (tried {tried}); {hint}"
