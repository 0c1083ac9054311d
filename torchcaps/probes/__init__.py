"""Probes: results that train no network, such as classifiers on frozen features and adversarial attacks."""
