"""Index arithmetic for ragged batches: runs of different lengths, one after the other in a flat tensor."""

from __future__ import annotations

import torch


def table_cells(rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The cells ``[rows[i], starts[i]:ends[i]]`` of a table, run after run.

    ``rows``, ``starts`` and ``ends`` are ``[bs]``; the result is a row index and a column index, both int64 and of
    length ``sum(ends - starts)``. Example: rows (7, 2), runs 3:5 and 0:1 give (7, 7, 2) and (3, 4, 0).
    """
    lengths = (ends - starts).to(torch.int64)
    before = torch.cumsum(lengths, 0) - lengths
    total = int(lengths.sum())
    shift = torch.repeat_interleave(starts.to(torch.int64) - before, lengths, output_size=total)
    return torch.repeat_interleave(rows.to(torch.int64), lengths, output_size=total), torch.arange(total) + shift
