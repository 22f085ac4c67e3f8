"""Attacks on places where data stay, each with right kernels that do the same for a reason. Written without knowing the defence."""
