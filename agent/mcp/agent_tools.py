"""The tools that an agent is offered: those of the chat policy, with patches, and those of a run."""

from cudal2_agent.policies.chat.offered_tools import IDEA, KERNEL, PATCH, TOOLS, Tool

READ_TASK = Tool(
    "read_task",
    "",
    "The task, the chip, the rules of a kernel file and its launch plan, an example or the best kernel so far with what limits "
    "it, device primitives, notes. Read it first, and again after kernels were handed in.",
)
TIME = Tool(
    "time_kernel",
    KERNEL,
    "Hands a kernel in: verifies it in full and times it on the GPU beside the baselines. Without a GPU it says that "
    "nothing is measured here.",
    (PATCH, IDEA),
)
PROFILE = Tool(
    "profile_kernel",
    KERNEL,
    "As time_kernel, and then reads the GPU's hardware counters: what limits the kernel, with evidence. Takes a minute.",
    (PATCH, IDEA),
)
SUBMIT = Tool(
    "submit_kernel",
    KERNEL,
    "Hands a kernel in as a result of the run: verified in full, timed where there is a GPU, and proved by the emulator where "
    "it would lead. Returns the verdict and its place. The best kernel handed in is the run's result.",
    (PATCH, IDEA),
)
BEST = Tool(
    "best_known",
    "",
    "The best kernels that are known for this task and near ones: of this run, of the shipped library and of earlier runs, "
    "with times and names. show_kernel returns a source; the other tools take the names.",
)
SHOW = Tool("show_kernel", KERNEL, "The source of a kernel by its name, such as k1.", (PATCH,))
FINISH = Tool(
    "finish",
    "",
    "Ends the run: its best kernels are measured together once more, and the report is written. No call is possible after it.",
)
HAND_IN = (TIME, PROFILE, SUBMIT)
AGENT_TOOLS = (
    READ_TASK,
    *(Tool(one.name, one.argument, one.description, (PATCH,)) if one.argument == KERNEL else one for one in TOOLS),
    *HAND_IN,
    *(BEST, SHOW, FINISH),
)
