"""Opens the server that a run asks. The `openai` package is slow to import and is loaded only here."""

from pydantic import SecretStr

from contract.events import Emit
from contract.options import ChatOptions
from policies.chat.server.chat_server import ChatServer


def open_server(options: ChatOptions, key: SecretStr | None, emit: Emit) -> ChatServer:
    """The server that the options name. Nothing is sent yet. Raises: UsageError for an invalid address."""
    from policies.chat.server.openai_server import OpenAIServer

    return OpenAIServer(options, key, emit)
