"""File-system jails and system-call filters for children that touch model-written code. Standard library only, but `kind`."""
