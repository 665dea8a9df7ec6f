"""What a server tells of itself: measures (`metrics`), where they go, and its log (`logs`).

    instruments   counters, gauges and histograms: cells that cost a lock and an addition
    metrics       every instrument of the server, named once; docs/metrics.md is written from it
    prometheus    the text that a scrape gets
    otlp          the same, pushed to an OpenTelemetry collector
    spans         what a server traces of the calls that it answers
    logs          the one place that sets up logging

A leaf: every layer but `engine` may count here, and this package knows none of them.
"""
