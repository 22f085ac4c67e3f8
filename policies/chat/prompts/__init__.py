"""What a model is shown: the records of a run as prompts.

- `composition`: which sections a prompt has, in which order, and how its tokens are shared between them.
- `rendering`: records as text. `history`: what was tried, and earlier kernels.
- `failures`: a failure as text, with what points at its cause.
- `modules`: a PyTorch module as text: buffers, operations, floor, problem file, examples.
- `schedules`: the kernel families that a reply may name schedules of.
- `primitives`: the device headers as signatures with their comments.
- `quoting`: untrusted text inside a prompt, fenced; marks of the chunks that are shown, and which of them a reply names.
- `templates/`: the Markdown templates of the system message and of each kind of request.
- `skeletons/`: one executed kernel for a target; `examples/`: one for each class of a module's operations. Tests prove them all
  on the emulator.
"""
