"""Faults on real servers and real processes: killed, stopped, cut off, with wrong clocks.

`processes` starts and harms them, `app` is what their workers run, `line` is a wire with delays and
holes, `crowd` is a process with many streams. tests/field_cases.toml says which report each test
stands for.
"""
