"""The border to a chat server.

protocol: what may be asked of a server: limits, replies, the `ChatServer` protocol.
opening: opens the server that a run asks.
openai_server: asks an OpenAI-compatible server, within time limits and with retries.
client: the `openai` client that requests are sent with.
request_parameters: what a request says beside its messages, without what a server has refused.
stream: reads a reply as it arrives.
retrying: when a request is tried again, and after which wait.
api_errors: translates the errors of the `openai` package.
background: an event loop in a thread of its own.
key: where the key comes from, and its removal from text.
log_guard: the removal of the key from log records.
replay: recorded replies in place of a server.
"""
