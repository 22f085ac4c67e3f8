"""The chat policy: a language model behind an OpenAI-compatible server writes candidates.

- `policy`: the candidates of a round, from several replies in parallel.
- `assignment`: what each reply of a round is asked for: a repair, an improvement or a first kernel.
- `conversation`: from a prompt to a candidate, or to the reason why there is none.
- `extraction`: the kernel file in the text of a reply.
- `account`: tokens, money and time of a run, and their caps.
- `tokens`: estimates of token counts.
- `prompts/`: what a model is shown.
- `server/`: what is sent to a chat server and what comes back, or a record in its place.
"""
