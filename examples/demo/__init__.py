"""The main job of the README: `make demo`."""
