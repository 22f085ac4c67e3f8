"""The chat policy: a language model behind an OpenAI-compatible server writes candidates.

policy: the candidates of a round, from several replies in parallel.
assignment: what each reply of a round is asked for, a repair or a better kernel, and with which exemplars.
conversation: one reply, from its prompt to a candidate or the reason why there is none.
extraction: the kernel file in a reply's text.
account: tokens, money and time of a run, and their caps.
tokens: estimates of how many tokens a text takes.
prompts/: what a model is shown.
server/: what is sent to a chat server and what comes back, or a record in its place.
"""
