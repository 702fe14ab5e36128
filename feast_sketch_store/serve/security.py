"""Feast's authentication, set up as ``feast serve`` does before it serves."""

from feast import FeatureStore
from feast.permissions.server.utils import (
    ServerType,
    init_auth_manager,
    init_security_manager,
    str_to_auth_manager_type,
)


def set_up_security(store: FeatureStore) -> None:
    """Authenticate requests as the repository's ``auth`` section says."""
    kind = str_to_auth_manager_type(store.config.auth_config.type)
    init_security_manager(auth_type=kind, fs=store)
    init_auth_manager(auth_type=kind, server_type=ServerType.REST, auth_config=store.config.auth_config)
