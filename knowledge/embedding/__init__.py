"""From texts to vectors: models that come as packages, and any other that sentence-transformers runs."""
