"""Read-only access to the rows that Feast's other online stores keep, in their own formats.

survey     what views would become here, and their size
importing  copies their rows into a view of this store
"""
