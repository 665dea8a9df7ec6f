"""The pure part: policies, retry decisions, states, limits, errors. No I/O, no clock, no database.

Everything here can be imported and tested without psycopg or grpc, and decides from its arguments
alone; randomness is handed in.
"""
