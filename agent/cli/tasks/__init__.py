"""`cudal2-agent tasks`: problem files of PyTorch modules, and collections of them.

`problem_files`: the verbs of files that exist. `generate`: files that are drawn, and fingerprints that none of them may have.
`task_flags`: the flags by which other commands name a task.
"""

from cudal2_agent.agent.cli.tasks import generate, problem_files

app = problem_files.app
app.command("generate", epilog=generate.EXAMPLE)(generate.generate)
app.command("fingerprint", epilog=generate.FINGERPRINT_EXAMPLE)(generate.fingerprint)
