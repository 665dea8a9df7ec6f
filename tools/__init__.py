"""Scripts for contributors; `make` calls them."""
