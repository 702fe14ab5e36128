"""What `online_write_batch` takes beside Feast's own conversion of the same rows, and beside other stores.

The conversion is what `feast materialize` does with the Arrow table of a view before it calls the store.
Every round writes into a fresh view, so a write includes creating the row log, syncing it, and the seal.
"""

from itertools import count

from feast.types import Int64, String
from measure import medians, short, table
from stores import VALUES_PER_USER, every_store, history_rows, history_view, temporary_folder, to_feast


def run(quick: bool) -> None:
    users = 2_000 if quick else 20_000
    lines = []
    for element in (Int64, String):
        view, batch = history_view(element), history_rows(users, element)
        rows = to_feast(batch, view)
        fresh = count()
        with temporary_folder() as folder, every_store(folder) as stores:

            def write(store, rows=rows, view=view, fresh=fresh):
                view.name = view.projection.name = f"history{next(fresh)}"
                store.write(view, rows)

            sides = {"conversion": lambda batch=batch, view=view: to_feast(batch, view)}
            sides |= {store.name: lambda s=store, write=write: write(s) for store in stores}
            times = medians(sides, 2 if quick else 7)
        for name, seconds in times.items():
            lines.append(
                (
                    f"Array({element})",
                    "Feast's conversion" if name == "conversion" else f"{name}: `online_write_batch`",
                    short(seconds / users * 1e6),
                    short(users / seconds),
                    short(seconds / times["conversion"]),
                )
            )
    print(f"{users:,} rows with {VALUES_PER_USER} values each\n")
    table(["feature", "step", "us per row", "rows per second", "times the conversion"], lines)
