"""Whether what the machine was like during a load spoils the figures.

Judged on what was recorded (:mod:`mtpgate.load.watching` records it). On GPUs a load is **void** if

* a GPU was slowed down by heat or by its power supply in more than SLOWDOWN_SHARE of the looks;
* another process computed on one of the GPUs;
* the canary after the load differs from the one before by more than CANARY_LIMIT on some GPU;
* the host had no idle core left (busy and stolen time above HOST_LIMIT), or a hypervisor took STEAL_LIMIT of it.

On any machine it is void if SGLang decoded eagerly at a batch size that it has graphs for, if it retracted requests, or
if requests waited although it admits as many as were sent. A CPU that is measured is shared by nature: its host,
canary and frequency are **remarks**, told with the figures, and do not make them void.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mtpgate.gpu.watch import SLOWDOWNS, GpuSample, reason_names
from mtpgate.load.conditions import Conditions, Judged, mean
from mtpgate.server.decode_lines import DecodeLines

SLOWDOWN_SHARE = 0.05
"""Share of looks: one look in twenty may catch a protection that acts for milliseconds."""

FOREIGN_SM_UTIL = 5
"""Per cent of SM time from which on another process computes; a display or a monitor stays below."""

SETTLING_LOOKS = 2
"""Looks whose utilization is passed over: NVML's samples reach back up to a second, to the canary before the load."""

CANARY_LIMIT = 0.10
"""Relative change of a GPU's canary. Half of the drop of clocks that a public report of throttling has
(1965 to 1580 MHz, -20 %, which cost 15 % of the tokens/s), and above what boost clocks move between two short runs."""

CPU_CANARY_LIMIT = 0.5
"""Relative change of the CPU's canary that is worth a remark. On two virtual cores whose other tenants come and go the
same product ran at 79 to 151 GFLOP/s within ten seconds."""

HOST_LIMIT = 0.9
"""Busy share of all cores, at which the server's threads wait for one: as the client's limit, see
:data:`mtpgate.load.health.CPU_SHARE_LIMIT`."""

STEAL_LIMIT = 0.05
"""Share of all cores' time that a hypervisor gave to others; the default minimum effect is 3 %."""

OTHER_CORES = 0.25
"""Cores that other processes must have used to be worth a remark."""

QUEUE_SHARE = 0.1
"""Share of decode lines with waiting requests; at the begin of a load some wait for their prefill."""

SHOWN_PROCESSES = 3


@dataclass(frozen=True)
class Asked:
    """What the launch under load should be able to do."""

    concurrency: int
    on_gpu: bool = False
    has_graphs: bool = False
    graph_max_bs: int | None = None
    """The largest batch that has a graph; None if that is not known."""
    max_running_requests: int | None = None


def judge_conditions(found: Conditions, asked: Asked) -> Judged:
    """The rule at the head of this module."""
    around = (*_host(found, asked), *_canary(found, asked))
    machine = [*_gpus(found), *(text for text, spoils in around if spoils and asked.on_gpu)]
    remarks = [
        *_power(found),
        *_designed(found.decode, asked),
        *(text for text, spoils in around if not (spoils and asked.on_gpu)),
    ]
    if found.canary_note:
        remarks.append(f"no canary: {found.canary_note}")
    return Judged(tuple(machine), tuple(_decode(found.decode, asked)), tuple(remarks))


def _gpus(found: Conditions) -> Iterator[str]:
    for samples in zip(*found.gpus, strict=True):
        slowed = [sample for sample in samples if sample.clocks_event_reasons & SLOWDOWNS]
        if len(slowed) > SLOWDOWN_SHARE * len(samples):
            mask = 0
            for sample in slowed:
                mask |= sample.clocks_event_reasons & SLOWDOWNS
            clocks = [sample.clock_sm_mhz for sample in samples if sample.clock_sm_mhz is not None]
            span = f", SM clock {min(clocks)} to {max(clocks)} MHz" if clocks else ""
            yield (
                f"GPU {samples[0].index} throttled in {len(slowed)} of {len(samples)} looks "
                f"({', '.join(reason_names(mask))}{span}): see to its cooling and power"
            )
        yield from _intruders(samples, found.server_pids)


def _intruders(samples: Sequence[GpuSample], server: frozenset[int]) -> Iterator[str]:
    """Other processes that compute. Where no process id is the server's, the driver counts in another namespace, and
    those that were there before the load are taken for the server's."""
    ours = server if any(sample.processes & server for sample in samples) else samples[0].processes
    new = {pid for sample in samples[1:] for pid in sample.processes} - ours - samples[0].processes
    busy = {
        pid: max(sample.sm_util.get(pid, 0) for sample in samples[SETTLING_LOOKS:])
        for pid in {pid for sample in samples[SETTLING_LOOKS:] for pid in sample.sm_util} - ours
    }
    for pid in sorted({*new, *(pid for pid, percent in busy.items() if percent >= FOREIGN_SM_UTIL)}):
        used = f" (up to {busy[pid]} % of its SMs)" if busy.get(pid) else ""
        yield f"process {pid} computed on GPU {samples[0].index} during the load{used}"


def _power(found: Conditions) -> Iterator[str]:
    for samples in zip(*found.gpus, strict=True):
        capped = sum(1 for sample in samples if sample.clocks_event_reasons & 0x4)
        if capped > len(samples) / 2:
            yield f"GPU {samples[0].index} worked at its power limit in {capped} of {len(samples)} looks"


def _decode(lines: DecodeLines, asked: Asked) -> Iterator[str]:
    limit = asked.graph_max_bs
    if asked.has_graphs:
        eager = [batch for batch in lines.batches if batch.graph is False and (limit is None or batch.running <= limit)]
        if eager:
            yield (
                f"SGLang decoded eagerly in {len(eager)} of {len(lines.batches)} decode lines "
                f"(first with {eager[0].running} running) though it has captured graphs"
            )
    if lines.retracted:
        yield f"SGLang retracted requests ({lines.retracted} times): the KV pool is too small for this load"
    queued = [batch for batch in lines.batches if batch.queued]
    admits = asked.max_running_requests
    if admits is not None and asked.concurrency <= admits and len(queued) > max(1, QUEUE_SHARE * len(lines.batches)):
        yield (
            f"requests waited in {len(queued)} of {len(lines.batches)} decode lines "
            f"(up to {max(batch.queued or 0 for batch in queued)}) though {admits} may run at once"
        )


def _designed(lines: DecodeLines, asked: Asked) -> Iterator[str]:
    limit = asked.graph_max_bs
    if asked.has_graphs and limit is not None and asked.concurrency > limit:
        yield f"batches above {limit} decode eagerly: the cell's graphs end there"
    if asked.has_graphs and not lines.batches:
        yield "eager steps would not be seen: the load was too short for a decode line"


def _host(found: Conditions, asked: Asked) -> Iterator[tuple[str, bool]]:
    if not found.host:
        return
    busy, steal = mean(found.host, "busy_share"), mean(found.host, "steal_share")
    others = found.other_cores
    if busy + steal > HOST_LIMIT and asked.on_gpu:
        yield f"the host had no core to spare: {busy + steal:.0%} of {found.cores} busy{_named(found)}", True
    elif others > OTHER_CORES:
        yield f"other processes used {others:.1f} of {found.cores} cores{_named(found)}", False
    if steal > STEAL_LIMIT:
        yield f"the hypervisor took {steal:.0%} of the CPU time", True


def _named(found: Conditions) -> str:
    busiest = [process for process in found.others if process.cores >= OTHER_CORES / 2][:SHOWN_PROCESSES]
    names = ", ".join(f"{process.name} (pid {process.pid}) {process.cores:.1f}" for process in busiest)
    return f" ({names})" if names else ""


def _canary(found: Conditions, asked: Asked) -> Iterator[tuple[str, bool]]:
    limit = CANARY_LIMIT if asked.on_gpu else CPU_CANARY_LIMIT
    for device, before in found.canary_before.items():
        after = found.canary_after.get(device, {})
        for figure in sorted(before.keys() & after.keys()):
            change = after[figure] / before[figure] - 1
            if abs(change) > limit:
                yield (
                    (
                        f"{device} changed during the load: canary {figure} {before[figure]:.1f} before, "
                        f"{after[figure]:.1f} after ({change:+.0%}, limit {limit:.0%})"
                    ),
                    True,
                )
