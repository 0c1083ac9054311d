"""Training products of expert capsules with mixing by dynamic routing (Hauser 2019)."""
