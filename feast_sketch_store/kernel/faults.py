"""Why a read of the kernel failed."""

DAMAGED, NOT_SERVED, TOO_LONG = range(3)  # why a read failed
_REASONS = {
    DAMAGED: "rows cannot be read: parts of them contradict each other",
    NOT_SERVED: "an entity is in a shard that is not served",
    TOO_LONG: "a feature takes more bytes than the answer may have",
}


class ReadFault(ValueError):
    """A read failed.

    Parameters
    ----------
    status : why; see above.
    feature : the number of the feature that is too long.
    entity_hash : of the entity that was read, 16 bytes.
    """

    def __init__(self, status: int, feature: int, entity_hash: bytes):
        super().__init__(_REASONS[status])
        self.status, self.feature, self.entity_hash = status, feature, entity_hash
