"""Result files, one JSON per finished run: writing, statistics, tables, verification, comparison."""
