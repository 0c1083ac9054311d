"""Data sets, one file for each source: SPECS are the sets that it offers, build(spec) says how one is read."""
