"""The chat policy: a language model behind an OpenAI-compatible server writes candidates.

- `policy`: the candidates of a round, from several replies in parallel.
- `assignment`: what each reply of a round is asked for: a repair, an improvement or a first kernel.
- `conversation`: from a prompt to candidates, or to the reason why there is none.
- `account`: tokens, money and time of a run, and their caps.
- `tokens`: estimates of token counts.
- `prompts/`: what a model is shown.
- `replies/`: what a reply holds, and the candidates that it gives.
- `server/`: what is sent to a chat server and what comes back, or a record in its place.
"""
