"""Measures, logs and HTTP of a server."""
