"""What a model is shown: records of a run as prompts.

composition: which sections a prompt has, in which order, and how its tokens are dealt out between them.
rendering: records as text.
primitives: the device headers as signatures with their comments.
quoting: untrusted text inside a prompt, fenced.
shortening: text made to fit a number of tokens.
allotment: the tokens of a prompt, dealt out between its parts.
templates/: the Markdown files of the system message and of each kind of request.
"""
