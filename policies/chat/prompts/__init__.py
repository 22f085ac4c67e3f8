"""What a model is shown: the records of a run as prompts.

- `composition`: which sections a prompt has, in which order, and how its tokens are shared between them.
- `rendering`: records as text.
- `failures`: a failure as text, with what points at its cause.
- `primitives`: the device headers as signatures with their comments.
- `quoting`: untrusted text inside a prompt, fenced.
- `fitting`: text made to fit a number of tokens.
- `templates/`: the Markdown templates of the system message and of each kind of request.
"""
