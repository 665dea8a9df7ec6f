"""The Tenure server: leases tasks to workers and keeps every fact in PostgreSQL."""

__version__ = "0.1.0"
