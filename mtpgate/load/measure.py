"""One measurement of one cell at one concurrency: a discarded warm-up, then repeats over the same prompts.

Method. The warm-up runs one request a slot at the measured concurrency, so that every batch size that the load can
reach has been seen once. Then ``workload.repeats`` passes over the same prompts; the prefix cache is flushed before
each pass, or it would answer for the model. The value of the measurement is the median of the repeats.

Tokens/s of a repeat are those of its steady state (:mod:`mtpgate.load.steady`): ramp-up and tail are cut, and reported
in the repeat beside the figure of the whole pass. How much of a pass is tail depends on how unequal the requests are,
which changes with acceptance: in the figure of the whole pass a cell with better but more unequal acceptance looks
worse than it is. :data:`VALUE` names the definition in the baselines' keys.

Void. A measurement with any failed request does not count, nor one whose client was at its limit, nor one whose
prompts came from the prefix cache; ``void`` says why. The first failure ends it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict

from mtpgate.load.closed_loop import STOPPED, LoadRun, run_load
from mtpgate.load.figures import accept_length, distributions, tpot_seconds, ttft_seconds
from mtpgate.load.honesty import LARGEST_LOSS, client_objection
from mtpgate.load.measurement import Measurement, Repeat, RequestRecord
from mtpgate.load.prompts import TokenPrompt, first_prompts
from mtpgate.load.steady import steady_state, within
from mtpgate.load.wire import Api
from mtpgate.matrix.cell import Workload

IDLE_TIMEOUT_SECONDS = 120.0
"""A request without a byte for this long has hung: the longest prefill queue of the matrices is far shorter."""

CACHED_SHARE_LIMIT = 0.05
"""Input tokens that may come from the prefix cache: the prompts share at most 7 of their first tokens."""

VALUE = "steady"
"""What ``output_tokens_per_second`` is; part of a baseline's key, because other definitions are not comparable."""

Progress = Callable[[str], None]


def run_repeat(
    base_url: str,
    prompts: Sequence[TokenPrompt],
    *,
    concurrency: int,
    output_tokens: int,
    idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS,
    api: Api = "generate",
    decode_every_event: bool = False,
) -> Repeat:
    """One pass over the prompts; failures are in the records' ``error``, see :func:`repeat_objection`.

    Raises:
        UsageError: a bad address, or a concurrency that the prompts cannot feed.
    """
    return repeat_of(
        run_load(
            base_url,
            prompts,
            concurrency=concurrency,
            output_tokens=output_tokens,
            idle_timeout_seconds=idle_timeout_seconds,
            api=api,
            decode_every_event=decode_every_event,
        )
    )


def measure(
    base_url: str,
    cell_id: str,
    workload: Workload,
    prompts: Sequence[TokenPrompt],
    *,
    flush: Callable[[], None],
    warmup: bool = True,
    on_progress: Progress = lambda _: None,
    idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS,
    largest_loss: float = LARGEST_LOSS,
) -> Measurement:
    """Measure ``workload`` on the server at ``base_url`` (``http://HOST:PORT``).

    ``flush`` empties the server's prefix cache and returns when that is done; ``on_progress`` gets a line when a pass
    begins and ends; ``largest_loss`` is the share of the load that the client itself may cost before the measurement
    is void.

    Raises:
        UsageError: a bad address, or fewer prompts than ``workload.requests``.
    """
    chosen = first_prompts(prompts, workload.requests)
    repeats: list[Repeat] = []
    void: str | None = None
    passes = [("warm-up", chosen[: workload.concurrency])] if warmup else []
    passes += [(f"repeat {number} of {workload.repeats}", chosen) for number in range(1, workload.repeats + 1)]
    for name, load in passes:
        on_progress(f"{cell_id} {workload.name}: {name}")
        flush()
        repeat = run_repeat(
            base_url,
            load,
            concurrency=workload.concurrency,
            output_tokens=workload.output_tokens,
            idle_timeout_seconds=idle_timeout_seconds,
            api=workload.api,
        )
        if name != "warm-up":
            repeats.append(repeat)
        objection = repeat_objection(repeat, largest_loss=largest_loss)
        if objection is not None:
            void = f"{name}: {objection}"
            break
        on_progress(f"{cell_id} {workload.name}: {name}: {repeat.output_tokens_per_second:.1f} tok/s")
    return summarise(cell_id, workload, repeats, void=void)


def summarise(cell_id: str, workload: Workload, repeats: Sequence[Repeat], *, void: str | None = None) -> Measurement:
    """The measurement that these repeats make; without one its figures are NaN."""
    accepted = accept_length(record for repeat in repeats for record in repeat.records)
    return Measurement(
        cell_id=cell_id,
        workload=workload.name,
        concurrency=workload.concurrency,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        repeats=tuple(repeats),
        output_tokens_per_second=_median([repeat.output_tokens_per_second for repeat in repeats]),
        accept_length=accepted,
        ttft_p50_seconds=_median([sample for repeat in repeats for sample in repeat.ttft_seconds]),
        tpot_p50_seconds=_median([sample for repeat in repeats for sample in repeat.tpot_seconds]),
        void=void,
        conditions={
            "requests": workload.requests,
            "client": [dict(repeat.client) for repeat in repeats],
            "cached_token_share": [round(_cached_share(repeat.records), 4) for repeat in repeats],
            "ramp_seconds": [repeat.steady.ramp_seconds for repeat in repeats if repeat.steady],
            "tail_seconds": [repeat.steady.tail_seconds for repeat in repeats if repeat.steady],
            "pass_tokens_per_second": [repeat.pass_tokens_per_second for repeat in repeats],
        },
        distributions=distributions((repeat.records, repeat.steady) for repeat in repeats if repeat.steady),
    )


def repeat_of(run: LoadRun) -> Repeat:
    """The figures of one pass; requests that failed count with the tokens that they got."""
    records = run.records
    wall = run.ended - run.started
    whole = sum(record.output_tokens for record in records) / wall if wall > 0 else 0.0
    steady = steady_state(records)
    parts = [within(record, steady) for record in records] if steady else records
    return Repeat(
        records=records,
        started=run.started,
        ended=run.ended,
        output_tokens_per_second=steady.output_tokens_per_second if steady else whole,
        ttft_seconds=tuple(value for record in records if (value := ttft_seconds(record)) is not None),
        tpot_seconds=tuple(value for record in parts if (value := tpot_seconds(record)) is not None),
        accept_length=accept_length(records),
        client=asdict(run.health),
        steady=steady,
        pass_tokens_per_second=whole,
    )


def repeat_objection(repeat: Repeat, *, largest_loss: float = LARGEST_LOSS) -> str | None:
    """Why a pass does not count, or None."""
    failed = [record for record in repeat.records if record.error is not None]
    if failed:
        cause = next((record for record in failed if record.error != STOPPED), failed[0])
        return (
            f"request {cause.prompt_id} failed: {cause.error} "
            f"({len(failed)} of {len(repeat.records)} requests did not end well; see the server's log)"
        )
    limited = client_objection(repeat, largest_loss=largest_loss)
    if limited is not None:
        return f"the client limited itself: {limited}"
    cached = _cached_share(repeat.records)
    if cached > CACHED_SHARE_LIMIT:
        return (
            f"{cached:.0%} of the input tokens came from the prefix cache (limit {CACHED_SHARE_LIMIT:.0%}): "
            "the cache was not flushed before the pass"
        )
    return None


def _cached_share(records: Sequence[RequestRecord]) -> float:
    cached = sum(value for record in records if isinstance(value := record.meta.get("cached_tokens"), int))
    return cached / max(1, sum(record.input_tokens for record in records))


def _median(samples: Sequence[float]) -> float:
    return statistics.median(samples) if samples else math.nan
