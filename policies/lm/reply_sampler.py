"""Samples replies of a model in this process."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from contract.exchange import Message
from policies.lm.base_model import LoadedModel

REPLY_TOKENS = 128  # a schedule takes 45 to 103 of SmolLM2's
TEMPERATURE = 0.8
BATCH = 64  # replies that are sampled together


@dataclass(frozen=True)
class SampledReply:
    """`cut`: it reached the limit of tokens."""

    text: str
    cut: bool


class ReplySampler:
    """Deterministic in its seed on one device."""

    def __init__(
        self, loaded: LoadedModel, reply_tokens: int = REPLY_TOKENS, temperature: float = TEMPERATURE, batch: int = BATCH
    ) -> None:
        self._loaded, self._tokens, self._temperature, self._batch = loaded, reply_tokens, temperature, batch
        loaded.model.eval()

    @property
    def name(self) -> str:
        return self._loaded.name

    def sample(self, prompts: Sequence[Sequence[Message]], count: int, seed: int) -> list[list[SampledReply]]:
        """`count` replies to each prompt."""
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(seed)
            texts = [text for prompt in prompts for text in [self._text(prompt)] * count]
            replies = [
                reply for start in range(0, len(texts), self._batch) for reply in self._replies(texts[start:][: self._batch])
            ]
        return [replies[start : start + count] for start in range(0, len(replies), count)]

    def _text(self, prompt: Sequence[Message]) -> str:
        messages = [message.model_dump() for message in prompt]
        text: str = self._loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return text

    def _replies(self, texts: Sequence[str]) -> Iterator[SampledReply]:
        model, tokenizer = self._loaded.model, self._loaded.tokenizer
        encoded = tokenizer(list(texts), return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        encoded = encoded.to(model.device)
        generated = model.generate(
            **encoded,
            do_sample=True,
            temperature=self._temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=self._tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
        ends = self._ends()
        for tokens in generated[:, encoded["input_ids"].shape[1] :].tolist():
            end = next((place for place, token in enumerate(tokens) if token in ends), None)
            yield SampledReply(tokenizer.decode(tokens[:end], skip_special_tokens=True), cut=end is None)

    def _ends(self) -> set[Any]:
        """The tokens that end a reply, by the model and by the tokenizer."""
        named = self._loaded.model.generation_config.eos_token_id
        return {self._loaded.tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
