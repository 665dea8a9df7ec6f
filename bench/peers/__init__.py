"""Other engines on PostgreSQL, measured beside the product in the same run.

`catalogue` has the peers with their settings, `python/` and `node/` a program for each, `install`
makes what the programs need, `drain` measures one peer, `run` prints the table.
"""
