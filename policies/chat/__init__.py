"""The chat policy: a language model behind an OpenAI-compatible server writes candidates."""
