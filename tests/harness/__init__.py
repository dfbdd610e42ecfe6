"""The scenario harness: Python 3's standard library only."""
