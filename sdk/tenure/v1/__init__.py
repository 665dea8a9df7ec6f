"""Generated from proto/tenure/v1 by `make gen`; do not edit."""
