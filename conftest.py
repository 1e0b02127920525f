"""Registers the pytest plugins of ``fixtures/``; nothing else."""

pytest_plugins = [
    "fixtures.options",
    "fixtures.session",
    "fixtures.launches",
    "fixtures.parity",
    "fixtures.outcomes",
    "fixtures.histories",
    "fixtures.baselines",
    "fixtures.allure_results",
    "fixtures.summary",
]
