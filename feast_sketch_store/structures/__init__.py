"""Structures: how the values of features are kept in a sealed layer, how large, and which is chosen.

    Structure       features that are kept together: a table that they share, one stream of sets, columns.
                    It is built, described in a snapshot under its ``kind``, and restored  (base)
      .features     SealedFeature: one feature, which says how the kernel reads it, verifies and has sizes
      Answer        states and a CSR matrix of symbols, maybe with weights

    a goal (goals) -> each kind of structure makes an Offer: a plan, its bytes, its false values
                   -> StructureSelector compares whole layers of offers (choice)
                   -> Structure.build, of FeatureRows and the plans

A layer knows which entities have rows. Structures are read by the hash of an entity or by the number of its
row; a layer lists its rows if any structure needs that (``lists_rows``). It stores the states of features,
unless their structure does (``tells_states``).

To add a structure, subclass `Structure` and `SealedFeature` in a module, or `SeparateFeature` for features
that share nothing, and list it in `registry`.
"""
