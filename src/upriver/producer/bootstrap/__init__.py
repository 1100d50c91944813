"""Client bootstrap: HELLO, authentication, bucket selection and cluster map, over TCP and HTTP."""
