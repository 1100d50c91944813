"""The rows of a mirror: columns of JSON values and of document keys."""
