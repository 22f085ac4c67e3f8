"""The error tree. What is the candidate's fault is an `Evaluation`, never an error.

Cudal2Error
├── UsageError            the user's input; one line, what to do next, exit code 2
│   └── PlanError         a launch plan or expression that breaks the rules (a candidate's: becomes `Rejected`)
├── MachineError          something this machine lacks: compiler, headers, driver, device
│   ├── CompilerMissing
│   ├── DeviceUnavailable
│   └── ProfilerUnavailable   no ncu, or no permission to read the GPU's counters; a run goes on without
├── WorkerError           a worker process could not be started or kept alive (not: killed by a candidate)
├── ProfileFailed         this candidate could not be profiled; others may
├── EndpointError         a chat server that cannot be used: unreachable, no such model, key refused, out of retries
├── StoreError            the trajectory store or a checkpoint is corrupt, locked or unreachable
└── KnowledgeError        the knowledge base cannot be read or written; the message says what to do
    ├── SourceError       a release, archive, checkout or folder that cannot be indexed; exit code 2
    ├── ModelMismatch     a store whose vectors come from another embedding model; never mixed
    └── KnowledgeBusy     another process is writing the knowledge base
"""


class Cudal2Error(Exception):
    """Root of all errors raised by this project. `log` holds long text that must not flood a terminal."""

    exit_code = 1

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class UsageError(Cudal2Error):
    exit_code = 2


class PlanError(UsageError):
    """A launch plan that breaks a rule; `rule` names it in kebab case, e.g. `plan-smem-limit`."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


class MachineError(Cudal2Error):
    """This machine lacks something; the message names it and the remedy."""


class CompilerMissing(MachineError):
    exit_code = 2


class DeviceUnavailable(MachineError):
    exit_code = 2


class ProfilerUnavailable(MachineError):
    exit_code = 2


class WorkerError(Cudal2Error):
    pass


class ProfileFailed(Cudal2Error):
    pass


class EndpointError(Cudal2Error):
    exit_code = 2


class StoreError(Cudal2Error):
    exit_code = 2


class KnowledgeError(Cudal2Error):
    pass


class SourceError(KnowledgeError):
    exit_code = 2


class ModelMismatch(KnowledgeError):
    exit_code = 2


class KnowledgeBusy(KnowledgeError):
    pass
