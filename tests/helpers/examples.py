"""Hypothesis gives the same examples in each run, in whatever time the machine takes for them."""

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers


def fix_examples() -> None:
    """Set what tests have that say nothing else; it counts for those that are imported later."""
    settings.register_profile(
        "repeatable",
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("repeatable")
    # It also tries constants of the modules that are imported, which depend on what the process ran before.
    if hasattr(providers, "is_local_module_file"):
        providers.is_local_module_file = lambda path: False
