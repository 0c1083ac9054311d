"""Where data come from: mirrors, files with hashes, formats, encoders."""
