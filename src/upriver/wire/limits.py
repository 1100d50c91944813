"""Limits on the sizes of everything received from the network, with the reason of each.

A value above its limit raises a `DecodeError` that names the field; only the limit of a packet's
own length makes the connection unusable, because the next packet cannot be found.
"""

from typing import Final

#: A document key without a collection prefix: memcached's limit since its first release.
MAX_KEY: Final = 250

#: A key on the wire with its collection prefix: one byte for the default
#: collection and 250 of key, or five bytes of prefix and 246 of key.
MAX_PREFIXED_KEY: Final = 251

#: The key without prefix in any collection but the default one.
MAX_COLLECTION_KEY: Final = 246

#: Draft 002's group id. Names that stand where a key does (connections, agents, control keys) have
#: the key's limit, as on real servers.
MAX_NAME: Final = 250

#: A document: 20 MiB is what Couchbase allows.
MAX_VALUE: Final = 20 * 1024 * 1024

#: Extended attributes may add 1 MiB of system attributes to a document.
MAX_SYSTEM_XATTRS: Final = 1024 * 1024

#: A stored value in total, with all of its parts.
MAX_STORED_VALUE: Final = MAX_VALUE + MAX_SYSTEM_XATTRS

#: The body of one packet. Real servers drop a peer above 30 MiB: a 20 MiB document, its
#: attributes, and room for messages that carry several documents.
MAX_BODY: Final = 30 * 1024 * 1024

#: A failover log has at most 25 entries on real servers; draft 000 speaks of 1 to 1024.
MAX_FAILOVER_LOG: Final = 1024

#: HELLO lists features of two bytes each; about forty exist.
MAX_FEATURES: Final = 1024

#: Above this a client's word is taken for whether its document is JSON: looking costs about
#: 15 ms for each MiB, in which nobody else is served.
MAX_CHECKED_JSON: Final = 256 * 1024

#: A decompressed value: no more than may be stored uncompressed, so that a small packet cannot
#: decompress to exhaust the memory.
MAX_INFLATED: Final = MAX_STORED_VALUE

#: How many times as large Snappy can make a value: its best element is 3 bytes that copy 64. So
#: what a batch of received bytes decompresses to is bounded too.
MAX_INFLATION: Final = 22
