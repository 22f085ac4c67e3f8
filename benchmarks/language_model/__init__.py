"""Trains the small language model in its three stages, and measures its proposals before, between and after."""
