"""Analysis of models and their outputs: metrics, routing, equivariance, sample quality, classifiers, attacks."""
