"""The border to a chat server.

- `chat_server`: the `ChatServer` protocol, with the limits of a request and its reply.
- `connection`: opens the server that a run asks.
- `openai_server`: asks an OpenAI-compatible server, within time limits and with retries.
- `client`: the `openai` client that sends requests.
- `pending`: a request in flight, and the ways in which a try of it can end.
- `request_parameters`: the parameters of a request, without those that a server has refused.
- `stream`: reads a reply as it arrives.
- `tool_calls`: tools in messages and in replies.
- `retrying`: retries of a request, and the waits before them.
- `api_errors`: translates the errors of the `openai` package.
- `background`: an event loop in its own thread.
- `key`: which key and which address are used.
- `redaction`: removal of the key from text and from log records.
- `replay`: recorded replies in place of a server.
"""
