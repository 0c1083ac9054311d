"""Sources of data: mirrors, files with hashes, formats, encoders."""
