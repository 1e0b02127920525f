"""Linear layers over packed weights against PyTorch's own."""

from __future__ import annotations

import pytest
import torch

from mtpgate.engine.overlay.mtpgate_engine.linear import FEWEST_ROWS, MOST_ROWS, small_batch_linear


def layer(features: int = 24, outputs: int = 40) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(features, outputs).requires_grad_(False)


def not_packed(method: object, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Stands in for SGLang's method; no real output is NaN, so a test sees which of the two was asked."""
    return x.new_full((*x.shape[:-1], layer.weight.shape[0]), torch.nan)


@pytest.mark.parametrize("rows", range(FEWEST_ROWS, MOST_ROWS + 1))
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_few_rows_give_the_product(rows: int, with_bias: bool) -> None:
    subject = layer()
    bias = subject.bias if with_bias else None
    x = torch.randn(rows, 24)
    expected = torch.nn.functional.linear(x, subject.weight, bias)
    torch.testing.assert_close(small_batch_linear(not_packed, None, subject, x, bias), expected)


def test_a_weight_is_packed_once() -> None:
    subject, x = layer(), torch.randn(3, 24)
    first = small_batch_linear(not_packed, None, subject, x)
    subject.weight.zero_()
    assert torch.equal(small_batch_linear(not_packed, None, subject, x), first)


def test_leading_dimensions_count_as_rows() -> None:
    subject, x = layer(), torch.randn(1, 3, 24)
    expected = torch.nn.functional.linear(x, subject.weight)
    torch.testing.assert_close(small_batch_linear(not_packed, None, subject, x), expected)


def test_each_layer_keeps_its_own_weight() -> None:
    first, second = layer(), layer()
    second.weight.mul_(2.0)
    x = torch.randn(4, 24)
    once = small_batch_linear(not_packed, None, first, x)
    torch.testing.assert_close(small_batch_linear(not_packed, None, second, x), 2.0 * once)


@pytest.mark.parametrize("rows", [1, MOST_ROWS + 1])
def test_other_row_counts_are_left_to_sglang(rows: int) -> None:
    assert small_batch_linear(not_packed, None, layer(), torch.randn(rows, 24)).isnan().all()


def test_other_types_are_left_to_sglang() -> None:
    assert small_batch_linear(not_packed, None, layer(), torch.randn(4, 24).bfloat16()).isnan().all()
