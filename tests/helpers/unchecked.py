"""Imported first by the process that others are forked from, in the short form.

Feast rewrites its modules when they are imported, to check the types of arguments; that is most of an import.
The tests themselves, and the long form, run with these checks.
"""

import typeguard

typeguard.typechecked = lambda target: target
