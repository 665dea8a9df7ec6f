"""Fixtures come from topic plugins, fix_*.py; tests ask for them by name."""

pytest_plugins = ["tests.fix_db", "tests.fix_server"]
