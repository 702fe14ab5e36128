__version__ = "0.2.16"
from deltalake.deltatable import DeltaTable  # noqa: F401
