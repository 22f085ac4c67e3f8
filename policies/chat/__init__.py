"""The chat policy: a language model behind an OpenAI-compatible server writes candidates.

- `policy`: the candidates of a round, from several replies in parallel.
- `assignment`: what each reply of a round is asked for: a repair, an improvement or a first kernel.
- `conversation`: from a prompt to candidates, or to the reason why there is none.
- `account`: tokens, money and time of a run, and their caps.
- `tokens`: estimates of token counts, and text made to fit them.
- `prompts/`: what a model is shown.
- `replies/`: what a reply holds, and the candidates that it gives.
- `offered_tools`: the tools that a model may call before it hands in a kernel, and the arguments of a call.
- `toolbox`: runs a call on the workbench and words its result.
- `tool_talk`: the calls of one conversation: the cap, the kernels by their names, and the kernel that a reply hands in.
- `server/`: what is sent to a chat server and what comes back, or a record in its place.
"""
