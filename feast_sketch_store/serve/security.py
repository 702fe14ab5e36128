"""Feast's authentication, set up as ``feast serve`` does before it serves."""

from feast import FeatureStore

from feast_sketch_store import feast_parts


def set_up_security(store: FeatureStore) -> None:
    """Authenticate requests as the repository's ``auth`` section says."""
    auth = store.config.auth_config
    kind = feast_parts.AUTH_KIND(auth.type)
    feast_parts.INIT_SECURITY(kind, store)
    feast_parts.INIT_AUTH(feast_parts.SERVER_TYPE.value.REST, kind, auth)
