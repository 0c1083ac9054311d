"""Device, distributed processes, files and the metrics log. Like ops, it imports no other room."""
