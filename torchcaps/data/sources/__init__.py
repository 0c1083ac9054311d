"""Where files come from: mirrors, formats, hashes."""
