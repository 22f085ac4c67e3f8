"""The border to a chat server.

- `chat_server`: the `ChatServer` protocol, with the limits of a request and its reply.
- `connection`: opens the server that a run asks.
- `openai_server`: asks an OpenAI-compatible server, within time limits and with retries.
- `client`: the `openai` client that sends requests, and its event loop in a thread.
- `pending`: a request in flight, the ways in which a try of it can end, and the errors of the `openai` package translated.
- `request_parameters`: the parameters of a request, without those that a server has refused.
- `stream`: reads a reply as it arrives.
- `tool_calls`: tools in messages and in replies.
- `retrying`: retries of a request, and the waits before them.
- `key`: which key and which address are used; the key removed from text and from log records.
- `replay`: recorded replies in place of a server.
"""
