"""Customers of an online gift shop, and the products they bought."""

from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType
from feast.types import Set, String

customer = Entity(name="customer", join_keys=["customer_id"], value_type=ValueType.INT64)

purchases = FileSource(
    name="purchases", path="data/online_retail_purchases.parquet", timestamp_field="event_timestamp"
)

customer_purchases = FeatureView(
    name="customer_purchases",
    entities=[customer],
    schema=[
        # A membership feature, kept in the smallest structure that shows few false values. Its type is Set,
        # because a sketch keeps neither order nor repetitions.
        Field(name="products", dtype=Set(String)),
        # A categorical feature: a read returns one value.
        Field(name="country", dtype=String),
    ],
    source=purchases,
)

recommender = FeatureService(name="recommender", features=[customer_purchases])
