"""Arrow's large types: strings, bytes and lists with 64-bit offsets.

The default types have 32-bit offsets. An array of them cannot hold 2 GiB, and concatenating arrays may fail.
Files of other programs, and the schema of a Delta table, have the default types.
"""

import pyarrow as pa


def large_type(kind: pa.DataType) -> pa.DataType:
    """The same type with 64-bit offsets."""
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(large_type(kind.value_type))
    return kind


def large_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns with large types."""
    return pa.schema([field.with_type(large_type(field.type)) for field in schema])


def with_large_types(table: pa.Table) -> pa.Table:
    """The same rows with large types. Columns that have them already are not copied.

    Raises
    ------
    pa.ArrowException : the table is not valid.
    """
    schema = large_schema(table.schema)
    return table if schema.types == table.schema.types else table.cast(schema)
