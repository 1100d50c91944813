"""A local cluster of several nodes: placement, replication, rebalance and failover of vbuckets.

One manager process keeps the cluster map on disk and changes it; there is no consensus among
several managers. This room may use `upriver.producer` and `upriver.consumer`.
"""

import logging

from ..escaping import escape_record

logging.getLogger("upriver.cluster").addFilter(escape_record)
