"""Samples replies of a model in this process, with the adapter merged into the weights while it does."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from peft.tuners.lora import LoraLayer
from transformers import LogitsProcessor, LogitsProcessorList

from cudal2_agent.contract.records.exchange import Message
from cudal2_agent.policies.lm.base_model import LoadedModel
from cudal2_agent.policies.lm.replies.reply_tree import OnlyReplies, ReplyTree

REPLY_TOKENS = 112  # a schedule takes 45 to 110 of SmolLM2's, and its end one
TEMPERATURE = 0.8
BATCH = 64  # replies that are sampled together on a CPU
GPU_BATCH = 256  # on a GPU, where the time of a token hardly depends on the number of replies


@dataclass(frozen=True)
class SampledReply:
    """`cut`: it reached the limit of tokens."""

    text: str
    cut: bool


class _AskedReply(NamedTuple):
    """A reply to sample: to a prompt, by the most likely tokens or not, along a tree or freely."""

    text: str
    greedy: bool
    tree: ReplyTree | None


class ReplySampler:
    """Deterministic in its seed on one device."""

    def __init__(
        self,
        loaded: LoadedModel,
        reply_tokens: int = REPLY_TOKENS,
        temperature: float = TEMPERATURE,
        batch: int | None = None,
    ) -> None:
        """`batch`: replies that are sampled together; by default as many as the device takes well."""
        self._loaded, self._tokens, self._temperature = loaded, reply_tokens, temperature
        self._batch = batch or (GPU_BATCH if loaded.model.device.type == "cuda" else BATCH)
        loaded.model.eval()

    @property
    def name(self) -> str:
        return self._loaded.name

    def sample(
        self,
        prompts: Sequence[Sequence[Message]],
        count: int,
        seed: int,
        *,
        greedy_first: bool = False,
        trees: Sequence[ReplyTree] | None = None,
    ) -> list[list[SampledReply]]:
        """`count` replies to each prompt. `greedy_first`: each token of the first one is the most likely.

        `trees`: the replies to each prompt that are allowed; any by default. The limit of tokens is that of the longest then.
        """
        with torch.random.fork_rng(), torch.inference_mode(), merged_adapter(self._loaded.model):
            torch.manual_seed(seed)
            asked = [
                _AskedReply(self._text(prompt), greedy_first and place == 0, trees[number] if trees else None)
                for number, prompt in enumerate(prompts)
                for place in range(count)
            ]
            replies = [
                reply
                for start in range(0, len(asked), self._batch)
                for reply in self._replies(asked[start : start + self._batch])
            ]
        return [replies[start : start + count] for start in range(0, len(replies), count)]

    def tree_of(self, replies: Sequence[str]) -> ReplyTree:
        """The replies as the model's tokens. Raises: ValueError without replies."""
        encoded = self._loaded.tokenizer(list(replies), add_special_tokens=False)["input_ids"] if replies else []
        return ReplyTree(encoded, self._loaded.tokenizer.eos_token_id)

    def _text(self, prompt: Sequence[Message]) -> str:
        messages = [message.model_dump() for message in prompt]
        text: str = self._loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return text

    def _replies(self, asked: Sequence["_AskedReply"]) -> Iterator[SampledReply]:
        model, tokenizer = self._loaded.model, self._loaded.tokenizer
        texts = [one.text for one in asked]
        encoded = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        encoded = encoded.to(model.device)
        prompt_tokens = encoded["input_ids"].shape[1]
        trees = [one.tree for one in asked if one.tree is not None]
        processors: list[LogitsProcessor] = [OnlyReplies(trees, prompt_tokens)] if trees else []
        if any(one.greedy for one in asked):
            processors.append(_MostLikely([one.greedy for one in asked], model.device))
        generated = model.generate(
            **encoded,
            do_sample=True,
            temperature=self._temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(tree.length for tree in trees) if trees else self._tokens,
            logits_processor=LogitsProcessorList(processors),
            pad_token_id=tokenizer.pad_token_id,
        )
        ends = self._ends()
        for tokens in generated[:, prompt_tokens:].tolist():
            end = next((place for place, token in enumerate(tokens) if token in ends), None)
            yield SampledReply(tokenizer.decode(tokens[:end], skip_special_tokens=True), cut=end is None)

    def _ends(self) -> set[Any]:
        """The tokens that end a reply, by the model and by the tokenizer."""
        named = self._loaded.model.generation_config.eos_token_id
        return {self._loaded.tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}


class _MostLikely(LogitsProcessor):
    """Leaves the most likely token alone in some rows of a batch, so that they are greedy among sampled ones."""

    def __init__(self, greedy: Sequence[bool], device: Any) -> None:
        self._greedy = torch.tensor(list(greedy), device=device).unsqueeze(1)

    def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: ARG002
        best = scores.argmax(dim=-1, keepdim=True)
        alone = torch.full_like(scores, float("-inf")).scatter(1, best, 0.0)
        return torch.where(self._greedy, alone, scores)


@contextmanager
def merged_adapter(model: Any) -> Iterator[None]:
    """The active LoRA adapter as part of the base model's weights, without its own operations for each token.

    Afterwards the base weights are what they were, bit by bit. In bfloat16 the merged weights are rounded.
    """
    layers = [one for one in model.modules() if isinstance(one, LoraLayer) and not one.merged]
    with torch.no_grad():
        before = [layer.get_base_layer().weight.clone() for layer in layers]
        try:
            for layer in layers:
                layer.merge()
            yield
        finally:
            for layer, weight in zip(layers, before, strict=True):
                layer.merged_adapters.clear()
                layer.get_base_layer().weight.copy_(weight)
