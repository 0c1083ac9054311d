"""The playground: draw a digit and watch capsules read it, in a browser, from a server here or from plain files."""
