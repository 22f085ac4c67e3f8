"""The portfolio policy: splits each round between other policies by what has paid so far."""
