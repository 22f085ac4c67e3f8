"""What servers say of a request that is too large, with their numbers as {c} (the limit), {p} (the prompt), {m} (the limit of
the reply that was asked for), {t} = p + m and {over} = p - c. Texts of servers as their users have quoted them.
"""

# Prompt and reply together exceed the context. The prompt's tokens are named.
TOGETHER = {
    "vllm-0.6": "This model's maximum context length is {c} tokens. However, you requested {t} tokens ({p} in the "
    "messages, {m} in the completion). Please reduce the length of the messages or completion.",
    "vllm-0.9": "'max_tokens' or 'max_completion_tokens' is too large: {m}. This model's maximum context length is {c} "
    "tokens and your request has {p} input tokens ({m} > {c} - {p}).",
    "vllm-0.15": "This model's maximum context length is {c} tokens. However, your request has {p} input tokens plus {m} "
    "'max_tokens'. Please reduce one or the other. (parameter=input_tokens, max_tokens, value=({p}, {m}))",
    "sglang": "Requested token count exceeds the model's maximum context length of {c} tokens. You requested a total "
    "of {t} tokens: {p} tokens from the input messages and {m} tokens for the completion. Please reduce the "
    "number of tokens in the input messages or the completion to fit within the limit.",
    "tgi": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {c}. Given: {p} `inputs` tokens "
    "and {m} `max_new_tokens`",
    "llama-cpp-python": "This model's maximum context length is {c} tokens. However, you requested {t} tokens ({p} in the "
    "messages, {m} in the completion). Please reduce the length of the messages or completion.",
    "openai-2023": "This model's maximum context length is {c} tokens, however you requested {t} tokens ({p} in your "
    "prompt; {m} for the completion). Please reduce your prompt; or completion length.",
    "anthropic": "input length and `max_tokens` exceed context limit: {p} + {m} > {c}, decrease input length or "
    "`max_tokens` and try again",
    "openrouter": "This endpoint's maximum context length is {c} tokens. However, you requested about {t} tokens ({p} of "
    'text input, {m} in the output). Please reduce the length of either one, or use the "middle-out" '
    "transform.",
    "litellm": "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - This model's maximum "
    "context length is {c} tokens. However, you requested {t} tokens ({p} in the messages, {m} in the "
    "completion). model=gpt-4-0613. Received Model Group=x",
    "tensorrt-llm": "The sum of prompt length ({p}) and max_tokens ({m}) should not exceed max_seq_len ({c})",
    "groq-413": "Request too large for model `llama` on tokens per minute (TPM): Limit {c}, Requested {t}, please reduce "
    "your message size and try again.",
    "with-commas": "Requested {t:,} tokens ({p:,} prompt + {m:,} completion), maximum context length is {c:,}",
    "fields": "context_length_exceeded: limit={c} prompt={p} completion={m}",
    "other-words-1": "Prompt ({p}) plus output budget ({m}) is more than this deployment holds ({c}).",
    "other-words-2": "tokens requested: {t} (prompt {p}, output {m}); window: {c}",
    "other-words-3": "maximum sequence length {c} exceeded: {p} prompt tokens + {m} new tokens",
    "chinese": "最大上下文长度为 {c}，请求 {t}（输入 {p}，输出 {m}）",
}
# The prompt alone exceeds the context.
ALONE = {
    "vllm-0.17": "Input length ({p}) exceeds model's maximum context length ({c}).",
    "vllm-vision": "The decoder prompt (length {p}) is longer than the maximum model length of {c}. Make sure that "
    "`max_model_len` is no smaller than the number of text tokens.",
    "sglang": "The input ({p} tokens) is longer than the model's context length ({c} tokens).",
    "sglang-kv": "Input length ({p} tokens) exceeds the maximum allowed length ({c} tokens). Use a shorter input or "
    "enable --allow-auto-truncate.",
    "tgi": "Input validation error: `inputs` must have less than {c} tokens. Given: {p}",
    "llama.cpp": "request ({p} tokens) exceeds the available context size ({c} tokens), try increasing it",
    "llama.cpp-fields": "the request exceeds the available context size. try increasing the context size or enable context "
    "shift: n_prompt_tokens={p}, n_ctx={c}",
    "lm-studio": "Trying to keep the first {p} tokens when context the overflows. However, the model is loaded with "
    "context length of only {c} tokens, which is not enough. Try to load the model with a larger context "
    "length, or provide a shorter input.",
    "lm-studio-keep": "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: {p}>= "
    "n_ctx: {c}). Try to load the model with a larger context length, or provide a shorter input.",
    "azure": "This model's maximum context length is {c} tokens. However, your messages resulted in {p} tokens. "
    "Please reduce the length of the messages.",
    "openai-gpt-5": "Input tokens exceed the configured limit of {c} tokens. Your messages resulted in {p} tokens. Please "
    "reduce the length of the messages.",
    "anthropic": "prompt is too long: {p} tokens > {c} maximum",
    "fireworks": "The prompt is too long: {p}, model maximum context length: {c}",
    "mistral": "Prompt contains {p} tokens and 0 draft tokens, too large for model with {c} maximum context length",
    "xai": "This model's maximum prompt length is {c} but the request contains {p} tokens.",
    "gemini": "The input token count ({p}) exceeds the maximum number of tokens allowed ({c})",
    "cerebras": "Please reduce the length of the messages or completion. Current length is {p} while limit is {c}",
    "copilot": "prompt token count of {p} exceeds the limit of {c}",
    "poolside": "Input length {p} exceeds the maximum allowed input length of {c} tokens.",
    "mlc": "Request prompt has {p} tokens in total, larger than the model input length limit {c}.",
    "ds4": "Prompt has {p:,} tokens, but the configured context size is {c:,} tokens",
}
# A reply alone may have no more than {c}.
REPLY = {
    "openai": "max_tokens is too large: {m}. This model supports at most {c} completion tokens, whereas you provided {m}.",
    "deepseek": "Invalid max_tokens value, the valid range of max_tokens is [1, {c}]",
    "groq": "`max_tokens` must be less than or equal to `{c}`, the maximum value for `max_tokens` is less than the "
    "`context_window`",
    "anthropic": "max_tokens: {m} > {c}, which is the maximum allowed number of output tokens for claude-3-5-haiku-20241022",
    "tgi": "Input validation error: `max_new_tokens` must be <= {c}. Given: {m}",
    "dashscope": "Range of max_tokens should be [1, {c}]",
    "gemini": "Unable to submit request because it has a maxOutputTokens value of {m} but the supported range is from "
    "1 (inclusive) to {c1} (exclusive). Update the value and try again.",
    "other-words": "max_tokens ({m}) is larger than the maximum of {c}",
}
# No number, or no limit.
NUMBERLESS = (
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Input is too long for requested model.",
    "Please reduce the length of the messages or completion.",
    "context_length_exceeded",
    "invalid params, context window exceeds limit",
    "the input length exceeds the context length",
    "max_tokens is too large",
)
# What is no error of size.
OTHER = (
    "Unsupported value: 'temperature' does not support 0.8 with this model. Only the default (1) value is supported.",
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "System role not supported",
    "The model `gpt-4-32k-8192` does not exist",
    "Incorrect API key provided: sk-123456",
    "CUDA error 700 at line 2048",
    "out of memory: tried to allocate 16384 bytes",
)
