"""How the conditions of a load differ from those that its baseline was measured under: told beside a verdict.

A change here explains a change of speed before anything in the product does. The limits are of what is worth a line:
of figures that a machine sets itself (clocks, canary) a change as small as the default minimum effect of speeds; of a
CPU's product what other tenants do to it (:data:`mtpgate.load.disturbance.CPU_CANARY_LIMIT`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from mtpgate.load.disturbance import CANARY_LIMIT, CPU_CANARY_LIMIT, OTHER_CORES

RELATIVE: Mapping[str, float] = {
    "clock_sm_mhz": 0.03,
    "clock_mem_mhz": 0.03,
    "cpu_frequency_mhz": 0.03,
    "power_watts": 0.1,
    "canary_matmul_tflops": CANARY_LIMIT / 2,
    "canary_matmul_gflops": CPU_CANARY_LIMIT,
    "canary_copy_gib_s": CANARY_LIMIT,
}
ABSOLUTE: Mapping[str, float] = {"other_cores": OTHER_CORES, "steal_share": 0.02, "temperature_celsius": 10.0}


def condition_changes(now: Mapping[str, float], baseline: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """``clock_sm_mhz 1580, the baseline's 1965 (-20%)`` for each figure that differs by more than its limit.

    Compared with the mean over the accepted launches that have the figure; what either side does not know is left out.
    """
    found = []
    for name, value in now.items():
        known = [launch[name] for launch in baseline if name in launch]
        if not known:
            continue
        usual = statistics.fmean(known)
        relative = name in RELATIVE and usual > 0 and abs(value / usual - 1) > RELATIVE[name]
        if relative or (name in ABSOLUTE and abs(value - usual) > ABSOLUTE[name]):
            share = f" ({value / usual - 1:+.0%})" if relative else ""
            found.append(f"{name} {value:.4g}, the baseline's {usual:.4g}{share}")
    return tuple(found)
