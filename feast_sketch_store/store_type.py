"""Registers ``type: sketch`` with Feast, without anyone importing this package.

Feast has no entry point for online stores: it looks short names up in a dictionary while it validates
``feature_store.yaml``, before it runs any code of a repository. So the installed file
``feast_sketch_store.pth`` makes Python import this module at start-up, and the module waits for
``feast.repo_config`` to be imported, then adds the name. An interpreter that never imports Feast pays for
one small module and for a string comparison per import.

``feast_sketch_store.pth`` ignores all errors of the installed package, so that it cannot disturb interpreters
that do not use it. Feast then reports that it does not know the name.
"""

import sys

_FEAST_MODULE = "feast.repo_config"


def _add_name(repo_config):
    names = getattr(repo_config, "ONLINE_STORE_CLASS_FOR_TYPE", None)
    if isinstance(names, dict):
        names.setdefault("sketch", "feast_sketch_store.online_store.SketchOnlineStore")


class _Loader:
    """Runs the real loader, then adds the name."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _add_name(module)


class _Finder:
    """Asks the other finders for Feast's module and wraps its loader; finds nothing itself."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != _FEAST_MODULE:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if finder is cls or find_spec is None:
                continue
            spec = find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


def register() -> None:
    """Add the name now if Feast is loaded, otherwise when Feast is loaded. Further calls change nothing."""
    if _FEAST_MODULE in sys.modules:
        _add_name(sys.modules[_FEAST_MODULE])
    elif _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
