"""What a person reads of a run.

`report`: the Markdown report; `measured_section`: its figures of a kernel. `output`: the output folder. `progress_plot`: the
times as SVG. `plan_picture`: a module's plan as SVG. `one_line`: an evaluation with its time in a line. `lead`: what the best
candidate was chosen by. `attribution`: which steps improved the best time. `keeping`: whether PyTorch's own way stays.
`module_folder`: what a program imports of a module. `provenance`: what an author had seen. `why`: both as text. `replies`:
sums over the exchanges with chat servers. `pieces_used`: which pieces of knowledge left their own words in a reply.
"""
