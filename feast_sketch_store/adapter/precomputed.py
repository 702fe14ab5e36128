"""Feature services with ``precompute_online``, and the vectors that callers write for them.

Feast keeps a finished vector per entity for such a service, and computes vectors for Redis only. This store
needs none: it answers the service from its views, with the latest rows.
"""

import logging

from feast import FeatureService
from feast.errors import FeastExtrasDependencyImportError
from feast.feature_view import FeatureView
from feast.field import Field
from feast.types import Bytes

from feast_sketch_store.rows.codecs import EXACT

_STORE = "SketchOnlineStore"  # as Feast names it in warnings


class _FromViews(FeatureService):
    """A service that Feast reads view by view. It equals the service that it replaces."""

    def __init__(self, service: FeatureService):
        self.__dict__.update(service.__dict__, precompute_online=False)
        self._service = service

    def __eq__(self, other: object) -> bool:
        return bool(self._service == other)

    __hash__ = FeatureService.__hash__


def from_views(features: list[str] | FeatureService) -> list[str] | FeatureService:
    """What a request asks for, such that Feast reads the views and no precomputed vectors."""
    if isinstance(features, FeatureService) and getattr(features, "precompute_online", False):
        return _FromViews(features)
    return features


def view_of_vectors(feature_service: str) -> FeatureView:
    """The view that holds the precomputed vectors of a feature service, named as Feast names it."""
    return FeatureView(
        name=f"__precomputed__{feature_service}",
        entities=[],
        schema=[Field(name="vector", dtype=Bytes, tags={"sketch.codec": EXACT})],
        source=None,
    )


def _is_needed(record: logging.LogRecord) -> bool:
    """Whether to keep a record: not Feast's warnings that it computed no vectors in this store.

    Feast logs them after each materialization and push: either that it cannot scan entities, or, without the
    client of Redis, the error of its import. The latter does not name the store; it is dropped for all.
    """
    if str(record.msg).startswith("Entity scanning not supported"):
        return record.args != (_STORE,)
    if str(record.msg).startswith("Failed to precompute vectors") and record.exc_info:
        return not isinstance(record.exc_info[1], FeastExtrasDependencyImportError)
    return True


def no_vectors_needed() -> None:
    """Let Feast not warn that this store has no precomputed vectors; further calls change nothing."""
    logging.getLogger("feast.feature_store").addFilter(_is_needed)
