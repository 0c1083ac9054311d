"""Results that train no network: classifiers on frozen features, and attacks."""
