"""What the engine does, one file an operation family; each function here owns a transaction.

Callers hand in validated requests and get plain values or a `TenureError`; nothing here knows of
gRPC. The order of locks is everywhere the same: sessions, runs, leases, then the rest.
"""
