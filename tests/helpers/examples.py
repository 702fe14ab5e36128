"""Makes Hypothesis give the same examples in each run, without a time limit."""

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers


def fix_examples() -> None:
    """Set the defaults for tests. Call this before they are imported."""
    settings.register_profile(
        "repeatable",
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("repeatable")
    # Hypothesis also tries constants of imported modules, which depend on what the process ran before. It has
    # no setting for that.
    if hasattr(providers, "is_local_module_file"):
        providers.is_local_module_file = lambda path: False
