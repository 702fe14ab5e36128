"""Who may read: Feast's decisions, cached while they cannot have changed.

For each request Feast verifies the token and reads all permissions again. Here Feast's own functions decide
when a token or a question is new; after that the decision is looked up. Only grants are answered here. Feast
decides on everything else itself, so it is Feast that denies a request.
"""

import asyncio
import contextvars
import hashlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from feast import FeatureStore

from feast_sketch_store import feast_parts
from feast_sketch_store.adapter.plans import Question

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_MAX_KEPT = 10_000  # tokens, and decisions
_SETTLED_SECONDS = 2.0  # two writes within a tick of the file system's clock may look like one

NO_AUTH, OIDC, KUBERNETES = "no_auth", "oidc", "kubernetes"


class Grant(NamedTuple):
    """The permission to read; ``user`` is Feast's, None without authentication."""

    user: Any = None

    def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function of Feast that uses the current user."""
        manager = feast_parts.SECURITY_MANAGER()
        if self.user is None or manager is None:
            return function(*arguments)
        context = contextvars.copy_context()
        context.run(feast_parts.SET_USER, manager, self.user)
        return context.run(function, *arguments)


class _Known(NamedTuple):
    """The user of a token, until a time in seconds since 1970, and while ``keys`` are in force."""

    user: Any
    until: float
    keys: object


class Guard:
    """Decides who is answered here. Used from one event loop.

    For ``cache_seconds`` a decision is kept whose change cannot be seen: the user of a Kubernetes token, and
    permissions in a registry that is no local file. 0 leaves such requests to Feast.
    """

    def __init__(self, store: FeatureStore, cache_seconds: float = 0.0):
        self._store = store
        self._kind = store.config.auth_config.type
        self._cache_seconds = cache_seconds
        self._users: OrderedDict[bytes, _Known] = OrderedDict()  # by SHA-256 of the token
        self._verdicts: OrderedDict[tuple[Any, ...], bool] = OrderedDict()
        self._permissions: object = None  # those that the verdicts hold for

    def why_not(self) -> str:
        """The reason why no request can be granted here; empty if some can."""
        if self._kind == NO_AUTH:
            return ""
        if self._kind not in (OIDC, KUBERNETES):
            return f"auth is of type {self._kind}"
        if changed := feast_parts.changed(
            feast_parts.AUTH if self._kind == KUBERNETES else (*feast_parts.AUTH, *feast_parts.OIDC),
            feast_parts.FEASTS_SERVER,
        ):
            return changed
        if self._kind == KUBERNETES and not self._cache_seconds:
            return "auth is of type kubernetes, and --auth-cache-seconds is 0"
        if feast_parts.registry_file(self._store.registry) is None and not self._cache_seconds:
            return "permissions are in a registry that is no local file, and --auth-cache-seconds is 0"
        return ""

    async def grant(self, scope: Mapping[str, Any], question: Question) -> Grant | None:
        """The permission to answer a request; None if Feast must answer, or deny it."""
        is_open = feast_parts.SECURITY_MANAGER() is None
        if self._kind == NO_AUTH or is_open:
            return Grant() if self._kind == NO_AUTH and is_open else None
        # A query may name another project.
        token = None if scope["query_string"] else _bearer(scope["headers"])
        user = None if token is None else await self._user(token)
        return Grant(user) if user is not None and await self._may_read(user, question) else None

    # -- authentication ----------------------------------------------------------------------

    async def _user(self, token: str) -> Any:
        keys = self._keys()
        if keys is None:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        known = self._users.get(digest)
        if known is None or known.keys is not keys or time.time() >= known.until:
            self._users.pop(digest, None)
            known = await self._verified(token, keys)
            if known is None:
                return None
        _keep(self._users, digest, known)
        return known.user

    def _keys(self) -> Any:
        """What tokens are verified with; None if Feast must fetch it."""
        parser = feast_parts.AUTH_MANAGER().token_parser
        if self._kind == KUBERNETES:
            return parser
        return feast_parts.oidc_keys(parser)

    async def _verified(self, token: str, keys: Any) -> _Known | None:
        """Let Feast verify a token; None if it is wrong, or one whose user may change."""
        import jwt  # which Feast has where it is used

        parser = feast_parts.AUTH_MANAGER().token_parser
        try:
            claims = jwt.decode(token, options={"verify_signature": False})
            until = float(claims["exp"])
            if self._kind == OIDC:
                # Feast asks Kubernetes about such a token, and fetches the keys again for an unknown one.
                signing = {key.key_id for key in keys.get_jwk_set().keys}
                if "kubernetes.io" in claims or jwt.get_unverified_header(token).get("kid") not in signing:
                    return None
            else:
                until = min(until, time.time() + self._cache_seconds)
            if until <= time.time():  # Feast accepts a token a few seconds longer
                return None
            user = await parser.user_details_from_access_token(access_token=token)
        except Exception as error:  # Feast reports it
            _logger.debug("Feast's server authenticates: %r", error)
            return None
        # Feast trusts the servers of its own deployment without a signature. A Kubernetes user without groups
        # is one whom the review of the token did not confirm.
        is_own = user.username == os.getenv("INTRA_COMMUNICATION_BASE64")
        is_unconfirmed = self._kind == KUBERNETES and not user.groups
        is_over = self._keys() is not keys
        return None if is_own or is_unconfirmed or is_over else _Known(user, until, keys)

    # -- authorization -----------------------------------------------------------------------

    async def _may_read(self, user: Any, question: Question) -> bool:
        permissions = self._current_permissions()
        if permissions is None:
            return False
        if permissions != self._permissions:
            await asyncio.to_thread(self._store.registry.refresh, self._store.project)
            self._permissions, self._verdicts = permissions, OrderedDict()
        verdicts = self._verdicts
        lists = (user.roles, user.groups, user.namespaces)
        key = (question.feature_service, question.features, user.username, *map(tuple, lists))
        verdict = verdicts.get(key)
        if verdict is None:
            verdict = await self._asked(user, question)
        _keep(verdicts, key, verdict)
        return verdict

    def _current_permissions(self) -> object:
        """Something that changes whenever permissions may have; None if that cannot be seen."""
        path = feast_parts.registry_file(self._store.registry)
        if path is None:
            return int(time.monotonic() / self._cache_seconds) if self._cache_seconds else None
        try:
            found = path.stat()
        except OSError:
            return None
        if time.time() - found.st_ctime < _SETTLED_SECONDS:
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino

    async def _asked(self, user: Any, question: Question) -> bool:
        """Ask Feast whether a user may read the views or the service of a question."""
        request = SimpleNamespace(
            feature_service=question.feature_service or None, features=list(question.features)
        )
        try:
            # In a context of its own, because Feast's app finds no user of this request before it has looked.
            await Grant(user).run(
                asyncio.get_running_loop().create_task, feast_parts.CHECK_FEATURES(request, self._store)
            )
        except Exception as error:  # Feast reports it
            _logger.debug("Feast's server denies: %r", error)
            return False
        return True


def _bearer(headers: Any) -> str | None:
    """The token of a request; None if it has none, or if it is given in an unusual way."""
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) != 1 or not values[0].startswith(b"Bearer ") or not values[0].isascii():
        return None
    words = values[0].decode().split()
    return words[1] if len(words) == 2 else None


def _keep(kept: "OrderedDict[Any, _T]", key: Any, value: _T) -> None:
    """Keep the values that were used last."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MAX_KEPT:
        kept.popitem(last=False)
