"""Measurements: what the database allows, and what the product makes of it, in one run."""
