"""Imported first where Feast is to be imported without its type checks: by the process that others are forked
from, in the short form, and by steps of CI about the kernel and storages.

Feast rewrites its modules when they are imported, to check the types of arguments; that is most of an import.
README's test command and the long form run with these checks.
"""

import typeguard

typeguard.typechecked = lambda target: target
