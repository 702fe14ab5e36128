"""The errors of the store: one small hierarchy, each message names the thing at fault and what to do."""


class SketchStoreError(Exception):
    """Base class of every error that the store raises on purpose."""


class SettingsError(SketchStoreError, ValueError):
    """An option of ``feature_store.yaml`` or a ``sketch.*`` tag has a value that cannot work."""


class UnsupportedFeatureError(SketchStoreError):
    """A feature has a type that no codec takes; raised by ``feast apply``."""


class RowError(SketchStoreError, ValueError):
    """A row cannot be kept as it was given; nothing of its batch was written."""


class VocabularyOverflowError(SketchStoreError):
    """A write would take a feature past ``max_vocabulary``; nothing of its batch was written."""


class DamagedFileError(SketchStoreError):
    """A file of the store is truncated, altered or not one of ours."""


class StorageError(SketchStoreError):
    """The store's folder cannot be read or written."""


class PlanError(SketchStoreError, ValueError):
    """A plan cannot be made: there are no rows, no labels that fit, or nothing meets the target."""
