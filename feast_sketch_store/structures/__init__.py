"""Structures: how the values of features are kept in a sealed layer, how large, and which is chosen.

    Structure       features that are kept together: a table that they share, one stream of sets, columns.
                    It is built, described in a snapshot under its ``kind``, and restored  (base)
      .features     SealedFeature: one of them, which reads, shows, verifies and has its sizes   (base)
        .read       -> Answer: states and a CSR matrix of symbols, maybe with weights; bits,
                    contains and scores follow from these, or are answered without them            (answer)

    a goal (goals) -> each kind of structure makes an Offer: a plan, its bytes, its false values
                   -> Choice compares whole layers of offers (choice)
                   -> Structure.build, of FeatureRows and the plans

A layer knows which entities have rows, and passes them to the features as `FoundRows`: their hashes for
structures that are read by hash, their numbers in the list of rows for the others. It lists its rows as soon
as a structure wants that (``lists_rows``), and keeps the states of features unless their structure does
(``tells_states``).

    bloom, symbols, table, filter_offers, sizing     plain and weighted Bloom filters
    set_columns                                      sets
    compact_sets                                     sets in count trees
    columns, elements                                columns of exact features, and of scalars beside a list
    registry                                         all of them, by the names in tags and snapshots
    parts, feature_rows, costs                       helpers to write one

To add one, subclass `Structure` and `SealedFeature` in a module, and register it: `registry.register`.
"""
