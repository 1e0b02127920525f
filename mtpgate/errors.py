"""The exception types that tell a broken product from a broken machine and from a wrong request.

A *product fault* is never one of these: it is an assertion in a suite, or a ``StartupFailure`` of the server room
that a suite turns into one. What is here ends as Allure's "broken" or as a usage error.
"""

from __future__ import annotations


class MtpgateError(Exception):
    """Base of all errors that this project raises on purpose; its text is one message for a person."""


class UsageError(MtpgateError):
    """The request cannot be carried out as asked (bad file, flag, hardware): exit code 2 (CLI) or 4 (pytest).

    The text names the file, key or flag, what was found, what was expected and the next step.
    """


class InfrastructureFault(MtpgateError):
    """The machine, not the product, failed (disk full, port range exhausted, GPU lost): Allure "broken"."""
