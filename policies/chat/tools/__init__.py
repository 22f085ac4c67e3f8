"""Tools that a model may call before it hands in a kernel.

- `offered_tools`: the tools as a request offers them.
- `tool_arguments`: the arguments of a call, and what is wrong with them.
- `toolbox`: runs a call on the workbench and words its result.
- `tool_talk`: the calls of one conversation: the cap, the kernels by their names, and the kernel that a reply hands in.
"""
