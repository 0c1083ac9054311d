"""Playground: draw a digit in a browser and watch capsules classify it, from a local server or static files."""
