"""Learned representations: encoders, views, objectives, methods, evaluation, training and runs. This half may change."""
