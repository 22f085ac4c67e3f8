"""A cuBLASLt library for tests, without a GPU."""
