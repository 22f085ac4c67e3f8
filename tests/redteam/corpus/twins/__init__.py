"""Attacks, each with right kernels that do the same for a reason, by an author who did not know the defence."""
