"""Feast's type checks, added sooner.

Feast has typeguard rewrite 240 of its functions when it is imported. For each, typeguard parses the module
and goes over all of it. Here it parses a module once and goes over what the function is made of: the
functions have the same code, and an import of Feast takes half of the time.
"""

import ast
from copy import copy, deepcopy
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from typeguard import _decorators

_IMPORTING = (ast.Import, ast.ImportFrom, ast.If, ast.Try)


def add_checks_sooner() -> None:
    """Call this before Feast is imported. It has no effect where typeguard works in another way."""
    typeguard: Any = _decorators
    if not {"ast", "TypeguardTransformer"} <= vars(typeguard).keys():
        return
    parsed = lru_cache(maxsize=8)(ast.parse)

    class OfOneFunction(typeguard.TypeguardTransformer):  # type: ignore[misc]
        def visit_Module(self, node: ast.Module) -> Any:
            path = getattr(self, "_target_path", None)
            node.body = _parts_for(node.body, path) if path else deepcopy(node.body)
            return super().visit_Module(node)

    typeguard.ast = SimpleNamespace(parse=lambda source: copy(parsed(source)), unparse=ast.unparse)
    typeguard.TypeguardTransformer = OfOneFunction


def _parts_for(body: list[ast.stmt], path: tuple[str, ...]) -> list[ast.stmt]:
    """Copies of what a module or class imports, and of the function at the path below it."""
    parts: list[ast.stmt] = []
    for part in body:
        if isinstance(part, ast.ClassDef) and part.name == path[0] and path[1:]:
            parts.append(deepcopy(part, {id(part.body): _parts_for(part.body, path[1:])}))
        elif isinstance(part, _IMPORTING) or getattr(part, "name", None) == path[0]:
            parts.append(deepcopy(part))
    return parts
