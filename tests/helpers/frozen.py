"""Imported last by the process that others are forked from.

Collections of garbage leave out what was imported until then: each fork would go over it, and copy it.
"""

import gc

gc.collect()
gc.freeze()
