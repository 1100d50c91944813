"""Checkpoints: their JSON form and files, and a check whether a server accepts them."""
