"""One JSON file per finished run: writing, statistics, tables, verification, comparison."""
