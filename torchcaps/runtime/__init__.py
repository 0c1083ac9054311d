"""Ground floor, beside ops: the machine, several processes, files and the metrics log. Nothing here knows a capsule."""
