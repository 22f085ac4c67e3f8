"""Attention as two products with a softmax between them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.norms import softmax, with_operands
from cudal2_agent.policies.fusion.values import Scope, Unplanned, Value
from cudal2_agent.policies.fusion.views import permuted, reshaped, triangle

Product = Callable[[str, Sequence[Value], tuple[int, ...]], Value]  # (name, operands, shape): a batched matrix product


def attention(name: str, args: Sequence[Any], kwargs: dict[str, Any], product: Product) -> Value:
    """softmax(q k^T * scale + mask) v. A row whose every key is masked is zero, as in ATen.

    Shape: q (..., l, e), k (..., s, e), v (..., s, o). Raises: Unplanned for dropout and for groups of heads.
    """
    named: dict[str, Any] = (
        dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
    )
    query, key, value = (named[each] for each in ("query", "key", "value"))
    mask = named.get("attn_mask")
    if named.get("dropout_p") or named.get("enable_gqa") or query.shape[:-2] != key.shape[:-2]:
        raise Unplanned("aten.scaled_dot_product_attention", "with dropout, or heads that share keys")
    *outer, length, depth = query.shape
    keys, last = key.shape[-2], value.shape[-1]
    flat = [
        reshaped(f"{name}_{at}", each, (math.prod(each.shape[:-2]), *each.shape[-2:]))
        for at, each in zip("qkv", (query, key, value), strict=True)
    ]
    batches = flat[0].shape[0]
    scores = product(f"{name}_scores", [flat[0], permuted(f"{name}_turned", flat[1], (0, 2, 1))], (batches, length, keys))
    whole = reshaped(f"{name}_whole", scores, (*outer, length, keys))
    scale = named.get("scale") or depth**-0.5

    def scaled(scope: Scope, of: list[Expr]) -> Expr:
        made, ctype = scope.pool, whole.ctype
        score = made.call("({0} * {1})", ctype, of[0], made.literal(scale, ctype))
        if len(of) == 1:
            return score
        if of[1].ctype == "bool":
            return made.call("({1} ? {0} : {2})", ctype, score, of[1], made.literal("-inf", ctype))
        return made.call("({0} + {1})", ctype, score, made.cast(of[1], ctype))

    total: Value = with_operands(
        f"{name}_masked", [whole, *([] if mask is None else [mask])], whole.shape, whole.element, scaled
    )
    if named.get("is_causal"):
        total = triangle(f"{name}_causal", total, 0, lower=True, fill="-inf")
    weights = softmax(f"{name}_softmax", total, -1, log=False, masked=mask is not None)
    made = product(f"{name}_product", [reshaped(f"{name}_weights", weights, scores.shape), flat[2]], (batches, length, last))
    return reshaped(name, made, (*outer, length, last))
