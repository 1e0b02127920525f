"""Registers the pytest plugins of ``fixtures/``; nothing else."""

pytest_plugins = [
    "fixtures.options",
    "fixtures.session",
    "fixtures.launches",
    "fixtures.baselines",
    "fixtures.outcomes",
    "fixtures.allure_results",
    "fixtures.summary",
]
