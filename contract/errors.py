"""The error tree. A fault of the candidate is an `Evaluation`, never an error.

Cudal2Error
├── UsageError            wrong input from the user; one line that says what to do next; exit code 2
│   └── PlanError         a launch plan or expression that breaks a rule; for a candidate it becomes `Rejected`
├── MachineError          this machine lacks a compiler, headers, a driver or a device
│   ├── CompilerMissing
│   ├── DeviceUnavailable
│   ├── ProfilerUnavailable   no ncu, or no permission to read GPU counters; a run continues without counters
│   └── LauncherError         a kernel of a library could not be loaded or launched; `status` is the driver's name of the error
├── WorkerError           a worker process could not be started or kept alive; a kill caused by a candidate is not one
├── ProfileFailed         this candidate could not be profiled; other candidates may work
├── EndpointError         a chat server cannot be used: unreachable, unknown model, key refused, out of retries
├── TrainingFailed        a training cannot go on; its last checkpoint stays
├── LibraryError          a kernel library, or a kernel built from it, is damaged, stale or of another version; exit code 2
├── StoreError            the trajectory store or a checkpoint is corrupt, locked or unreachable
└── KnowledgeError        the knowledge base cannot be read or written; the message says what to do
    ├── SourceError       a release, archive, checkout or folder cannot be indexed; exit code 2
    ├── ModelMismatch     the vectors of the store come from another embedding model; vectors are never mixed
    └── KnowledgeBusy     another process is writing the knowledge base
"""


class Cudal2Error(Exception):
    """Root of all errors of this project. `log` holds text that is too long for a terminal."""

    exit_code = 1

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class UsageError(Cudal2Error):
    exit_code = 2


class PlanError(UsageError):
    """A launch plan breaks a rule. `rule` is its name in kebab case, such as `plan-smem-limit`."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


class MachineError(Cudal2Error):
    """This machine lacks something. The message names it and the remedy."""


class CompilerMissing(MachineError):
    exit_code = 2


class DeviceUnavailable(MachineError):
    exit_code = 2


class ProfilerUnavailable(MachineError):
    exit_code = 2


class LauncherError(MachineError):
    """A kernel of a library could not be loaded or launched. `status`: the driver's name of the error."""

    def __init__(self, message: str, status: str = "CUDA_ERROR_UNKNOWN", *, log: str = "") -> None:
        super().__init__(message, log=log)
        self.status = status


class WorkerError(Cudal2Error):
    pass


class ProfileFailed(Cudal2Error):
    pass


class EndpointError(Cudal2Error):
    exit_code = 2


class TrainingFailed(Cudal2Error):
    pass


class LibraryError(Cudal2Error):
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
