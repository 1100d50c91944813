"""The Upriver server: connections, DCP streams, key-value commands, authentication, statistics."""

import logging

from ..escaping import escape_record

logging.getLogger("upriver.producer").addFilter(escape_record)
