"""Servicers, thin: check and decode a request, call a use case, encode the answer.

Handlers run on the event loop; what touches the database runs on store threads, through the
dispatch's batchers where many callers meet, else through `call.run`.
"""
