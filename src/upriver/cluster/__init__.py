"""Several nodes: which has what, how copies are kept, moved and promoted, and who says so.

One manager process holds the map on disk and changes it; there is no second one and no
agreement among several. It may use `upriver.producer` and `upriver.consumer`.
"""
