"""HTTP of one server process: measures and health.

app       the paths, and who may ask for them
listener  the socket, TLS, and the life of it on the server's event loop
"""
