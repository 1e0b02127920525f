"""The nightly gate for SGLang's multi-token prediction: the machinery, which knows no pytest."""

__version__ = "0.1.0"
