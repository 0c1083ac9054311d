"""An Algorithm for Routing Capsules in All Domains (Heinsen 2019)."""
