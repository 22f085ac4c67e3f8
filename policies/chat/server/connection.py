"""Opens the server that a run asks. The `openai` package is slow to import and is loaded only here."""

from pydantic import SecretStr

from cudal2_agent.contract.events import Emit
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.server.chat_server import ChatServer


def open_server(options: ChatOptions, key: SecretStr | None, emit: Emit) -> ChatServer:
    """The server that the options name. Nothing is sent yet. Raises: UsageError for an invalid address."""
    from cudal2_agent.policies.chat.server.openai_server import OpenAIServer

    return OpenAIServer(options, key, emit)
