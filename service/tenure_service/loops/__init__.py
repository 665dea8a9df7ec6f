"""What runs by itself on every server, safely on all at once: each loop claims, acts, commits."""
