"""What the parts of cudal2-agent promise one another: records, errors, settings, events, protocols.

Imports pydantic and the standard library only; every other package of the project imports this one.
"""
