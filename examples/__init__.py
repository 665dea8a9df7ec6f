"""Examples that are run: by people, and by the tests."""
