"""SGLang's own rules: what it would run as something else, and what it would refuse.

Read in the published wheel of SGLang 0.5.23; each rule names its file below ``sglang/srt``. Two kinds:

- a *rewriting* gives the arguments that SGLang will really run with (silently, or with a warning in the log), so that
  two cells that are one launch are launched once;
- a *refusal* gives the reason why a launch cannot come up or cannot measure what was asked, so that nobody waits ten
  minutes for a ValueError.

They hold for the EAGLE family, which is what MTP runs as. Rewritings come first, as in SGLang: topk 1 makes a wrong
number of draft tokens right before anything could object to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mtpgate.matrix.cell import ArgumentValue

Arguments = Mapping[str, ArgumentValue]

EAGLE_FAMILY = ("EAGLE", "EAGLE3", "STANDALONE")
DEEPSEEK_V4 = "DeepseekV4ForCausalLM"
SPECULATIVE_NUMBERS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
SPECULATIVE_REQUEST_CAP = 48
"""``arg_groups/speculative_hook.py``, ``_handle_eagle_family``: max_running_requests when it was not set."""
DEEPSEEK_V4_REQUEST_CAP = 256
"""``arg_groups/deepseek_v4_hook.py``, ``apply_deepseek_v4_defaults``: set before speculation can set its 48."""

PAGE_TREE_BACKENDS = ("flashinfer", "fa3", "triton")
PAGED_BACKENDS = ("flashmla", "trtllm_mla", "cutedsl_mla", "hpc_ops")
"""Backends that force a page size above 1: ``arg_groups/overrides.py``, ``_mla_backend_page_constraints``."""


@dataclass(frozen=True)
class Setting:
    """What rules need to know beside the arguments."""

    engine: str
    architecture: str | None
    concurrency: int
    """The largest concurrency of the matrix's workloads."""


def _integer(arguments: Arguments, name: str) -> int | None:
    """The argument if it is a whole number; None if it is unset or :func:`numbers_are_numbers` refuses it."""
    value = arguments.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def without_speculation(arguments: Arguments, _: Setting) -> tuple[dict[str, ArgumentValue], str] | None:
    """Without an algorithm the other speculative arguments are read by nobody.

    ``arg_groups/speculative_hook.py``, ``handle_speculative_decoding``: dispatches on speculative_algorithm only.
    """
    idle = [name for name in arguments if name.startswith("speculative_")]
    if "speculative_algorithm" in arguments or not idle:
        return None
    kept = {name: value for name, value in arguments.items() if name not in idle}
    return kept, f"without speculative_algorithm SGLang ignores {', '.join(idle)}"


def nextn_is_eagle(arguments: Arguments, _: Setting) -> tuple[dict[str, ArgumentValue], str] | None:
    """NEXTN is EAGLE, and case does not matter. (A Gemma4 draft model makes it FROZEN_KV_MTP; not covered here.)

    ``arg_groups/speculative_hook.py``, ``_resolve_speculative_algorithm_alias``.
    """
    asked = arguments.get("speculative_algorithm")
    if not isinstance(asked, str):
        return None
    meant = "EAGLE" if asked.upper() == "NEXTN" else asked.upper()
    if meant == asked:
        return None
    return {**arguments, "speculative_algorithm": meant}, f"SGLang runs speculative_algorithm {asked} as {meant}"


def chain_has_a_token_per_step(arguments: Arguments, _: Setting) -> tuple[dict[str, ArgumentValue], str] | None:
    """At topk 1 the draft is a chain: num_draft_tokens becomes num_steps + 1, with only a warning.

    ``arg_groups/speculative_hook.py``, ``_handle_eagle_family``. No reason is given where it was unset: nobody asked
    for something else.
    """
    steps = _integer(arguments, "speculative_num_steps")
    asked = arguments.get("speculative_num_draft_tokens")
    if steps is None or _integer(arguments, "speculative_eagle_topk") != 1 or asked == steps + 1:
        return None
    reason = f"at eagle_topk 1 SGLang rewrites num_draft_tokens {asked} to num_steps + 1 = {steps + 1}"
    reason = reason if asked is not None else ""
    return {**arguments, "speculative_num_draft_tokens": steps + 1}, reason


def numbers_are_numbers(arguments: Arguments, _: Setting) -> str | None:
    """argparse reads them with ``type=int`` (``arg_groups/fields/spec.py``)."""
    for name in SPECULATIVE_NUMBERS:
        number = _integer(arguments, name)
        if name in arguments and (number is None or number < 1):
            return f"{name} must be a whole number from 1 on, not {arguments[name]!r}"
    return None


def family_is_eagle(arguments: Arguments, _: Setting) -> str | None:
    """Other algorithms (NGRAM, DFLASH, DSPARK, ...) follow rules that are not written down here."""
    algorithm = arguments.get("speculative_algorithm")
    if algorithm is None or algorithm in EAGLE_FAMILY:
        return None
    return f"speculative_algorithm {algorithm}: only {', '.join(EAGLE_FAMILY)} and NEXTN are covered"


def three_numbers_or_none(arguments: Arguments, setting: Setting) -> str | None:
    """num_steps unset requires the other two unset; then SGLang chooses by architecture, unseen by a matrix.

    ``arg_groups/speculative_hook.py``, ``_handle_eagle_family`` (an assertion) and
    ``_auto_choose_speculative_params`` (3/1/4, or 5/4/8 for Llama and Grok). With num_steps set the others must be
    set too, or the comparison of topk with a number fails in the same function.
    """
    if "speculative_algorithm" not in arguments:
        return None
    unset = [name for name in SPECULATIVE_NUMBERS if name not in arguments]
    if not unset:
        return None
    if len(unset) == len(SPECULATIVE_NUMBERS):
        return "SGLang would choose num_steps, eagle_topk and num_draft_tokens by the architecture; write them down"
    if SPECULATIVE_NUMBERS[0] in unset:
        return "num_steps is unset, so SGLang wants eagle_topk and num_draft_tokens unset too"
    return f"num_steps is set, so {' and '.join(unset)} must be set too"


def tree_holds_the_draft_tokens(arguments: Arguments, _: Setting) -> str | None:
    """num_steps * eagle_topk + 1 >= num_draft_tokens >= 2: more can never be filled by the steps' best candidates.

    SGLang 0.5.23 does not check it at start-up. Its tuning script skips such points, and the server dies while
    drafting once num_draft_tokens - 1 exceeds the candidates, topk + (num_steps - 1) * topk^2: ``torch.topk`` in
    ``speculative/eagle_utils.py``, ``organize_draft_results``.
    """
    steps = _integer(arguments, "speculative_num_steps")
    topk = _integer(arguments, "speculative_eagle_topk")
    drafts = _integer(arguments, "speculative_num_draft_tokens")
    if steps is None or topk is None or drafts is None:
        return None
    if drafts < 2:
        return f"num_draft_tokens {drafts} leaves no token to draft; use at least 2"
    room = steps * topk + 1
    if drafts <= room:
        return None
    return f"num_draft_tokens {drafts} is more than num_steps * eagle_topk + 1 = {room}: the tree cannot be filled"


def tree_needs_a_page_tree_backend(arguments: Arguments, _: Setting) -> str | None:
    """topk > 1 with page_size > 1 only on flashinfer, fa3, triton; some backends force a page size above 1.

    ``arg_groups/speculative_hook.py``, ``_handle_eagle_family`` (``_PAGE_TREE_SPEC_BACKENDS``, and trtllm_mha at any
    page size). A backend that the matrix leaves to SGLang depends on the GPU and is not judged here.
    """
    topk = _integer(arguments, "speculative_eagle_topk")
    if topk is None or topk == 1:
        return None
    if "trtllm_mha" in {arguments.get(name) for name in _BACKEND_ARGUMENTS}:
        return "the trtllm_mha attention backend supports speculation with eagle_topk 1 only"
    backend = arguments.get("attention_backend")
    if backend is None or backend in PAGE_TREE_BACKENDS:
        return None
    page_size = _integer(arguments, "page_size") or 1
    if page_size == 1 and backend not in PAGED_BACKENDS:
        return None
    shown = f"page_size {page_size}" if page_size > 1 else "the page size above 1 that it forces"
    allowed = ", ".join(PAGE_TREE_BACKENDS)
    return f"eagle_topk {topk} on attention backend {backend} with {shown}: SGLang allows that on {allowed} only"


_BACKEND_ARGUMENTS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")


def backend_can_speculate(arguments: Arguments, _: Setting) -> str | None:
    """flex_attention and torch_native cannot verify drafts.

    ``arg_groups/attention_hook.py``, ``handle_attention_backend_compatibility`` (flex_attention) and
    ``speculative/draft_utils.py``, ``DraftBackendFactory`` (no entry for torch_native).
    """
    backend = arguments.get("attention_backend")
    if "speculative_algorithm" not in arguments or backend not in {"flex_attention", "torch_native"}:
        return None
    return f"SGLang has no speculative decoding on attention backend {backend}"


def deepseek_v4_drafts_a_chain(arguments: Arguments, setting: Setting) -> str | None:
    """DeepSeek-V4 takes EAGLE with topk 1, given explicitly (the check comes before any default).

    ``arg_groups/deepseek_v4_hook.py``, ``apply_deepseek_v4_defaults``; it also takes DSPARK, which is not covered.
    """
    algorithm = arguments.get("speculative_algorithm")
    if setting.architecture != DEEPSEEK_V4 or algorithm is None:
        return None
    if algorithm != "EAGLE":
        return f"DeepSeek-V4 refuses speculative_algorithm {algorithm}; it takes EAGLE"
    topk = arguments.get("speculative_eagle_topk")
    return None if topk == 1 else f"DeepSeek-V4 needs eagle_topk 1, not {topk}"


def deepseek_v4_cache_types(arguments: Arguments, setting: Setting) -> str | None:
    """``arg_groups/overrides.py``, ``_deepseek_v4_kv_cache_dtype``."""
    dtype = arguments.get("kv_cache_dtype", "auto")
    if setting.architecture != DEEPSEEK_V4 or dtype in {"auto", "fp8_e4m3", "bfloat16"}:
        return None
    return f"DeepSeek-V4 takes kv_cache_dtype fp8_e4m3 or bfloat16, not {dtype}"


def rejection_sampling_drafts_a_chain(arguments: Arguments, _: Setting) -> str | None:
    """``arg_groups/speculative_hook.py``, ``_handle_eagle_family``."""
    if arguments.get("speculative_use_rejection_sampling") is not True:
        return None
    if arguments.get("speculative_algorithm") not in {"EAGLE", "EAGLE3"}:
        return "speculative_use_rejection_sampling works with EAGLE and EAGLE3 only"
    topk = arguments.get("speculative_eagle_topk")
    return None if topk == 1 else f"speculative_use_rejection_sampling needs eagle_topk 1, not {topk}"


def requests_fit_the_cap(arguments: Arguments, setting: Setting) -> str | None:
    """A workload above max_running_requests would measure the queue, not the server."""
    cap = request_cap(arguments, setting)
    if cap is None or setting.concurrency <= cap:
        return None
    whose = "" if "max_running_requests" in arguments else " (SGLang's default here)"
    return f"concurrency {setting.concurrency} of the workloads is above max_running_requests {cap}{whose}; set it"


def request_cap(arguments: Arguments, setting: Setting) -> int | None:
    """max_running_requests as SGLang will have it; None where it follows from the memory."""
    asked = _integer(arguments, "max_running_requests")
    if asked is not None:
        return asked
    if setting.architecture == DEEPSEEK_V4:
        return DEEPSEEK_V4_REQUEST_CAP
    return SPECULATIVE_REQUEST_CAP if "speculative_algorithm" in arguments else None


def embedded_engine_is_small(arguments: Arguments, setting: Setting) -> str | None:
    """What the engine of :mod:`mtpgate.engine` does not do: more than one process, and speculation beside EAGLE.

    Capture under EAGLE is SGLang's own limit: ``model_executor/cpu_graph_runner.py`` asserts no speculation.
    """
    if setting.engine != "embedded":
        return None
    for name in ("tp_size", "dp_size", "pp_size", "ep_size"):
        if arguments.get(name, 1) != 1:
            return f"the embedded CPU engine runs one rank; {name} must be 1"
    algorithm = arguments.get("speculative_algorithm")
    if algorithm not in {None, "EAGLE"}:
        return f"the embedded CPU engine speculates with EAGLE only, not {algorithm}"
    if algorithm and arguments.get("enable_torch_compile") is True:
        return "the CPU graph runner (enable_torch_compile) does not support speculation"
    return None


REWRITINGS: tuple[Callable[[Arguments, Setting], tuple[dict[str, ArgumentValue], str] | None], ...] = (
    without_speculation,
    nextn_is_eagle,
    chain_has_a_token_per_step,
)
REFUSALS: tuple[Callable[[Arguments, Setting], str | None], ...] = (
    numbers_are_numbers,
    family_is_eagle,
    deepseek_v4_drafts_a_chain,
    three_numbers_or_none,
    tree_holds_the_draft_tokens,
    tree_needs_a_page_tree_backend,
    backend_can_speculate,
    deepseek_v4_cache_types,
    rejection_sampling_drafts_a_chain,
    requests_fit_the_cap,
    embedded_engine_is_small,
)


def rewrite(arguments: Arguments, setting: Setting) -> tuple[dict[str, ArgumentValue], list[str]]:
    """The arguments that SGLang will run with, and the reason of each change of something that was asked for."""
    result, reasons = dict(arguments), []
    for rule in REWRITINGS:
        if changed := rule(result, setting):
            result, reason = changed
            reasons += [reason] if reason else []
    return result, reasons


def refusal(arguments: Arguments, setting: Setting) -> str | None:
    """The first reason against a launch with these (rewritten) arguments; None if there is none."""
    return next((reason for rule in REFUSALS if (reason := rule(arguments, setting))), None)


def launch_key(arguments: Arguments, setting: Setting) -> tuple[tuple[str, ArgumentValue], ...]:
    """Equal for two cells that SGLang would launch as one: rewritten arguments with the cap that SGLang fills in."""
    full = dict(arguments)
    if (cap := request_cap(arguments, setting)) is not None:
        full["max_running_requests"] = cap
    return tuple(sorted((name, value) for name, value in full.items() if value is not False))
