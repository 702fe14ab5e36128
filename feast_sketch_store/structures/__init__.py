"""Structures: how the values of features are kept in a sealed layer, how large, and which is chosen.

    Structure       features that are kept together: a table that they share, one stream of sets, columns.
                    It is built, described in a snapshot under its ``kind``, and restored  (base)
      .features     SealedFeature: one feature, which reads, shows, verifies and has sizes        (base)
        .read       -> Answer: states and a CSR matrix of symbols, maybe with weights; bits,
                    contains and scores follow from these, or are answered without them            (answer)

    a goal (goals) -> each kind of structure makes an Offer: a plan, its bytes, its false values
                   -> Choice compares whole layers of offers (choice)
                   -> Structure.build, of FeatureRows and the plans

A layer knows which entities have rows. It passes them to the features as `FoundRows`: hashes for structures
that are read by hash, row numbers for the others. A layer lists its rows if any structure needs that
(``lists_rows``). It stores the states of features, unless their structure does (``tells_states``).

    bloom, symbols, table, filter_offers, sizing     plain and weighted Bloom filters
    clustered, clusters, cluster_sizing              filters with hashes by the entity's cluster
    set_columns, shared_values                       sets
    lists, counts                                    values with times, and values with counts
    columns, elements, scalars                       columns of exact features, and of scalars beside a list
    static                                           scalars in a static function
    backed                                           features whose values another store keeps
    registry                                         all of them, by the names in tags and snapshots
    parts, feature_rows, costs                       helpers to write one

To add a structure, subclass `Structure` and `SealedFeature` in a module, and list it in `registry`.
"""
