"""The GPT of `experiments.rivals.same_gpt` in plain JAX, under policies of `jax.checkpoint`; runs in JAX's environment.

Prints JSON: for each policy the bytes of what is saved, parameters and inputs aside, and the operations of matrix
products that recomputation adds to the program of loss and gradients: as JAX traces it, and as XLA compiles it.
"""

# JAX has an environment of its own.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
from jax import checkpoint_policies as policies
from jax._src.ad_checkpoint import saved_residuals

from experiments.rivals.hlo_dots import dot_flops

POLICIES = ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable", "everything_saveable")


def parameters_of(layers, width, vocabulary, context):
    """Makes random parameters."""
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 4 * layers + 3))

    def linear(inner, outer):
        return {"weight": 0.02 * jax.random.normal(next(keys), (inner, outer)), "bias": jnp.zeros(outer)}

    def norm():
        return {"scale": jnp.ones(width), "shift": jnp.zeros(width)}

    def block():
        sizes = {"qkv": (1, 3), "project": (1, 1), "up": (1, 4), "down": (4, 1)}
        layers = {name: linear(inner * width, outer * width) for name, (inner, outer) in sizes.items()}
        return {"norm1": norm(), "norm2": norm(), **layers}

    return {
        "tokens": linear(vocabulary, width)["weight"],
        "positions": linear(context, width)["weight"],
        "blocks": [block() for _ in range(layers)],
        "norm": norm(),
        "head": linear(width, vocabulary)["weight"],
    }


def apply(p, x):
    """Applies a linear layer."""
    return x @ p["weight"] + p["bias"]


def normalize(p, x):
    """Applies a layer norm."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["shift"]


def block(heads, p, x):
    """Applies a transformer block, attention written out."""
    batch, context, width = x.shape
    parts = jnp.split(apply(p["qkv"], normalize(p["norm1"], x)), 3, -1)
    q, k, v = (part.reshape(batch, context, heads, -1).swapaxes(1, 2) for part in parts)
    scores = q @ k.swapaxes(-1, -2) / (width // heads) ** 0.5
    weights = jax.nn.softmax(jnp.where(jnp.tri(context, dtype=bool), scores, -jnp.inf), -1)
    x = x + apply(p["project"], (weights @ v).swapaxes(1, 2).reshape(x.shape))
    return x + apply(p["down"], jax.nn.gelu(apply(p["up"], normalize(p["norm2"], x)), approximate=True))


def loss(step, p, tokens):
    """The mean loss of the next tokens; `step` applies a block."""
    x = p["tokens"][tokens] + p["positions"]
    for each in p["blocks"]:
        x = step(each, x)
    logits = normalize(p["norm"], x) @ p["head"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1).mean()


def main(layers, width, heads, vocabulary, context, batch):
    """Measures each policy, over the whole model and over each block."""
    parameters = parameters_of(layers, width, vocabulary, context)
    tokens = jax.random.randint(jax.random.PRNGKey(1), (batch, context), 0, vocabulary)
    plain = partial(block, heads)
    cases = {"no checkpoint": partial(loss, plain)}
    for name in POLICIES:
        wrap = partial(jax.checkpoint, policy=getattr(policies, name))
        cases |= {f"{name}, whole model": wrap(partial(loss, plain)), f"{name}, blocks": partial(loss, wrap(plain))}
    rows, without = [], (0, 0)
    for name, case in cases.items():
        saved = [aval for aval, why in saved_residuals(case, parameters, tokens) if "argument" not in why]
        lowered = jax.jit(jax.value_and_grad(case)).lower(parameters, tokens)
        products = dot_flops(lowered.as_text("hlo")), dot_flops(lowered.compile().as_text())
        without = without if rows else products
        extra = {"extra_flops": products[0] - without[0], "extra_compiled_flops": products[1] - without[1]}
        rows.append({"case": name, "saved_bytes": sum(a.size * a.dtype.itemsize for a in saved), **extra})
    print(json.dumps({"version": jax.__version__, "products_flops": without[1], "rows": rows}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
